#include "skep.h"

/* What programs call. The library's own threads are not there in a process that was forked from the one that loaded it,
 * so a call that entered Go would wait for them without an end: it is refused here. */

#ifdef _WIN32
#define PUBLIC __declspec(dllexport)
static const int forked = 0;
#else
#include <pthread.h>
#define PUBLIC
static volatile int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, in_child); }
#endif

#define UNSUPPORTED 19

static int refused(skep_error *err) {
	static const char why[] = "skep: libskep: unsupported: process is forked from the one that loaded the library, must be that one, or one "
	                          "that has started a program since (spawn, not fork)";
	size_t i;
	if (err) {
		err->code = UNSUPPORTED;
		for (i = 0; i < sizeof why && i < sizeof err->message; i++)
			err->message[i] = why[i];
		err->message[sizeof err->message - 1] = 0;
	}
	return UNSUPPORTED;
}

#define CALL(name, takes, given) \
	int skepgo_##name takes; \
	PUBLIC int skep_##name takes { return forked ? refused(err) : skepgo_##name given; }

PUBLIC int skep_version(void) { return SKEP_VERSION; }

PUBLIC int skep_forked(void) { return forked; }

CALL(open, (const char *json, skep_store *out, skep_error *err), (json, out, err))
CALL(close, (skep_store s, skep_error *err), (s, err))
CALL(namespace, (skep_store s, const char *json, uint32_t *id, skep_error *err), (s, json, id, err))
CALL(namespace_within, (skep_store s, const char *json, int64_t timeout_ms, uint32_t *id, skep_error *err),
     (s, json, timeout_ms, id, err))
CALL(put,
     (skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *keys, uint32_t n,
      const void *const *blocks, int64_t block_bytes, uint8_t *outcomes, skep_error *err),
     (s, scope, parent, depth, keys, n, blocks, block_bytes, outcomes, err))
CALL(lookup,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t lease_ms, skep_found *out,
      skep_error *err),
     (s, scope, keys, n, lease_ms, out, err))
CALL(lookup_within,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t lease_ms, int64_t timeout_ms,
      skep_found *out, skep_error *err),
     (s, scope, keys, n, lease_ms, timeout_ms, out, err))
CALL(lookup_each,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t lease_ms, int64_t timeout_ms,
      uint8_t *found, uint64_t *lease, skep_error *err),
     (s, scope, keys, n, lease_ms, timeout_ms, found, lease, err))
CALL(release, (skep_store s, uint64_t lease, skep_error *err), (s, lease, err))
CALL(renew, (skep_store s, uint64_t lease, int64_t lease_ms, skep_error *err), (s, lease, lease_ms, err))
CALL(exists,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t timeout_ms, uint8_t *tiers,
      skep_error *err),
     (s, scope, keys, n, timeout_ms, tiers, err))
CALL(load,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint64_t lease, void *const *blocks,
      const int64_t *lengths, int64_t timeout_ms, uint8_t *results, skep_error *err),
     (s, scope, keys, n, lease, blocks, lengths, timeout_ms, results, err))
CALL(save,
     (skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *keys, uint32_t n,
      const void *const *blocks, const int64_t *lengths, int64_t timeout_ms, uint8_t *outcomes, uint8_t *reasons,
      skep_error *err),
     (s, scope, parent, depth, keys, n, blocks, lengths, timeout_ms, outcomes, reasons, err))
CALL(save_accepted,
     (skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *keys, uint32_t n,
      const void *const *blocks, const int64_t *lengths, int64_t timeout_ms, uint8_t *outcomes, uint8_t *reasons,
      skep_error *err),
     (s, scope, parent, depth, keys, n, blocks, lengths, timeout_ms, outcomes, reasons, err))
CALL(flush, (skep_store s, int64_t timeout_ms, skep_error *err), (s, timeout_ms, err))
CALL(want,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t bytes, int64_t timeout_ms,
      uint8_t *outcomes, uint8_t *reasons, skep_error *err),
     (s, scope, keys, n, bytes, timeout_ms, outcomes, reasons, err))
CALL(delete,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t timeout_ms, uint32_t *deleted,
      skep_error *err),
     (s, scope, keys, n, timeout_ms, deleted, err))
CALL(hint,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, const skep_hints *future, int64_t timeout_ms,
      uint32_t *known, skep_error *err),
     (s, scope, keys, n, future, timeout_ms, known, err))
CALL(purge,
     (skep_store s, const char *tenant, const char *model, const skep_scope *scope, int64_t timeout_ms, skep_error *err),
     (s, tenant, model, scope, timeout_ms, err))
CALL(namespace_delete, (skep_store s, uint32_t id, int64_t timeout_ms, skep_error *err), (s, id, timeout_ms, err))
CALL(list,
     (skep_store s, uint32_t id, uint64_t *place, void *keys, uint32_t n, int64_t timeout_ms, uint32_t *count,
      skep_error *err),
     (s, id, place, keys, n, timeout_ms, count, err))
CALL(stats,
     (skep_store s, int64_t timeout_ms, char *json, uint64_t room, uint64_t *bytes, skep_error *err),
     (s, timeout_ms, json, room, bytes, err))
CALL(events_open,
     (skep_store s, uint64_t epoch, uint64_t seq, int snapshot, skep_events *out, skep_error *err),
     (s, epoch, seq, snapshot, out, err))
CALL(events_next,
     (skep_events e, int64_t timeout_ms, skep_event *into, uint32_t n, uint32_t *got, skep_error *err),
     (e, timeout_ms, into, n, got, err))
CALL(events_close, (skep_events e, skep_error *err), (e, err))
CALL(begin,
     (skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *key, const skep_part *parts,
      uint32_t n, int64_t life_ms, skep_writer *out, skep_error *err),
     (s, scope, parent, depth, key, parts, n, life_ms, out, err))
CALL(write,
     (skep_writer w, const char *part, int64_t offset, const void *bytes, int64_t n, int64_t timeout_ms, skep_error *err),
     (w, part, offset, bytes, n, timeout_ms, err))
CALL(commit,
     (skep_writer w, int accepted, int64_t timeout_ms, uint8_t *outcome, uint8_t *reason, skep_error *err),
     (w, accepted, timeout_ms, outcome, reason, err))
CALL(abort, (skep_writer w, skep_error *err), (w, err))
CALL(load_part,
     (skep_store s, const skep_scope *scope, const char *part, const void *keys, uint32_t n, uint64_t lease,
      void *const *blocks, const int64_t *lengths, int64_t timeout_ms, uint8_t *results, skep_error *err),
     (s, scope, part, keys, n, lease, blocks, lengths, timeout_ms, results, err))
CALL(queue_open,
     (skep_store s, uint32_t depth, skep_queue *out, int *eventfd, skep_error *err),
     (s, depth, out, eventfd, err))
CALL(submit,
     (skep_queue q, const skep_op *ops, uint32_t n, uint32_t *taken, skep_error *err),
     (q, ops, n, taken, err))
CALL(drain, (skep_queue q, skep_done *into, uint32_t n, uint32_t *got, skep_error *err), (q, into, n, got, err))
CALL(queue_close, (skep_queue q, int64_t timeout_ms, skep_error *err), (q, timeout_ms, err))
CALL(direct, (skep_store s, int64_t timeout_ms, skep_error *err), (s, timeout_ms, err))
CALL(restore,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t from, uint32_t to,
      const skep_paged *dest, skep_stream stream, int64_t timeout_ms, uint32_t *blocks, skep_error *err),
     (s, scope, keys, n, from, to, dest, stream, timeout_ms, blocks, err))
CALL(restore_layers,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t from, uint32_t to, uint32_t first,
      uint32_t last, const skep_paged *dest, skep_stream stream, int64_t timeout_ms, uint32_t *blocks, skep_error *err),
     (s, scope, keys, n, from, to, first, last, dest, stream, timeout_ms, blocks, err))
CALL(restore_begin,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t from, uint32_t to,
      const skep_paged *dest, skep_stream stream, const skep_cost *cost, uint64_t *word, int64_t timeout_ms,
      skep_restoring *out, skep_error *err),
     (s, scope, keys, n, from, to, dest, stream, cost, word, timeout_ms, out, err))
CALL(claim,
     (skep_restoring r, int64_t from, int64_t to, int idle, skep_claimed *out, skep_error *err),
     (r, from, to, idle, out, err))
CALL(computed,
     (skep_restoring r, int64_t from, int64_t to, int64_t took_ns, int64_t other_ns, skep_error *err),
     (r, from, to, took_ns, other_ns, err))
CALL(restore_poll,
     (skep_restoring r, int64_t timeout_ms, uint8_t *states, uint32_t *waiting, skep_error *err),
     (r, timeout_ms, states, waiting, err))
CALL(restore_end, (skep_restoring r, int64_t timeout_ms, skep_error *err), (r, timeout_ms, err))
CALL(prefill_begin,
     (skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t history,
      int64_t timeout_ms, skep_prefill *out, uint32_t *found, skep_error *err),
     (s, scope, keys, n, history, timeout_ms, out, found, err))
CALL(prefill_places, (skep_prefill p, uint32_t layer, uint64_t *at, skep_error *err), (p, layer, at, err))
CALL(prefill_step, (skep_prefill p, uint32_t to, skep_error *err), (p, to, err))
CALL(prefill_loaded, (skep_prefill p, uint32_t n, skep_stream stream, skep_error *err), (p, n, stream, err))
CALL(prefill_written, (skep_prefill p, uint32_t n, skep_stream stream, skep_error *err), (p, n, stream, err))
CALL(prefill_read, (skep_prefill p, uint32_t n, skep_stream stream, skep_error *err), (p, n, stream, err))
CALL(prefill_commit,
     (skep_prefill p, int64_t timeout_ms, uint32_t *stored, skep_error *err),
     (p, timeout_ms, stored, err))
CALL(prefill_end, (skep_prefill p, int64_t timeout_ms, skep_error *err), (p, timeout_ms, err))
CALL(shared_alloc,
     (skep_store s, int64_t bytes, void **memory, int *fd, int64_t *offset, skep_error *err),
     (s, bytes, memory, fd, offset, err))
CALL(shared_free, (skep_store s, void *memory, skep_error *err), (s, memory, err))
CALL(mem_register,
     (skep_store s, void *memory, int64_t bytes, int fd, int64_t offset, int64_t timeout_ms, skep_error *err),
     (s, memory, bytes, fd, offset, timeout_ms, err))
CALL(mem_unregister, (skep_store s, void *memory, int64_t timeout_ms, skep_error *err), (s, memory, timeout_ms, err))
CALL(device_alloc, (skep_store s, int64_t bytes, uint64_t *address, skep_error *err), (s, bytes, address, err))
CALL(device_free, (skep_store s, uint64_t address, skep_error *err), (s, address, err))
CALL(device_read,
     (skep_store s, uint64_t address, int64_t bytes, void *to, skep_error *err),
     (s, address, bytes, to, err))
CALL(device_write,
     (skep_store s, uint64_t address, int64_t bytes, const void *from, skep_error *err),
     (s, address, bytes, from, err))
CALL(stream_copy,
     (skep_store s, skep_stream stream, uint64_t to, uint64_t from, int64_t bytes, skep_error *err),
     (s, stream, to, from, bytes, err))
CALL(stream_new, (skep_store s, skep_stream *out, skep_error *err), (s, out, err))
CALL(stream_sync,
     (skep_store s, skep_stream stream, int64_t timeout_ms, skep_error *err),
     (s, stream, timeout_ms, err))
CALL(stream_free, (skep_store s, skep_stream stream, skep_error *err), (s, stream, err))
