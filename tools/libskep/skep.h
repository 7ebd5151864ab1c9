/* skep.h: KV blocks of language models, stored and given back into an engine's paged cache.
 *
 * Every function returns 0, or a code and, in *err where that is not NULL, the code and a
 * message: codes are skep's error kinds (1 invalid, 2 not found, 19 unsupported, 20 device
 * failed, ...), -1 any other. Functions may be called from any thread of the process that loaded the
 * library; in one that is forked from it every function returns 19. Memory given to a
 * function is the caller's and is not kept after it returns, but for
 *   the destination of a skep_restore with a stream: device memory that is written to until the stream gets past it,
 *   what a skep_restore_begin is given to write to, until its skep_restore_end, or skep_close, returns 0,
 *   what the operations of a skep_submit have, until they are drained (it says what of it),
 *   memory of skep_mem_register, which the server maps until skep_mem_unregister returns 0,
 *   and what a function that ends with code 18 was given: each says until when.
 *
 * On a GPU: skep_paged's where is SKEP_CUDA, addresses are the engine's own (cuMemAlloc's, or a
 * tensor's data_ptr()), and the stream is its CUstream or cudaStream_t. The library uses the driver
 * that the process has loaded and links to none.
 *
 * Who allocates: the caller, always. Device memory is the engine's own; the library never
 * shares it with other processes.
 */
#ifndef SKEP_H
#define SKEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKEP_VERSION 12 /* of what is declared here; skep_version() says which a library has */
#define SKEP_KEY 32 /* bytes of a key */
#define SKEP_WANTED 255 /* an answer of skep_want */

typedef uint64_t skep_store;  /* 0 is none */
/* A CUstream as a number (0 and 1: the legacy default one, 2: the calling thread's), or skep_stream_new's. */
typedef uint64_t skep_stream;

typedef struct {
	int32_t code;
	char message[252]; /* ends with 0 */
} skep_error;

/* Whose blocks: a namespace, and a per-user secret or NULL. */
typedef struct {
	uint32_t namespace_id;
	uint32_t salt_bytes;
	const void *salt;
} skep_scope;

/* What a lookup found. */
typedef struct {
	int64_t blocks; /* leading keys that can be restored now */
	int64_t tokens; /* in them */
	int64_t bytes;
	uint64_t lease; /* 0: none; give it back by skep_release */
} skep_found;

enum { SKEP_HND = 0, SKEP_NHD = 1 };    /* order of axes of a page */
/* Where addresses are: on the host, on the simulated GPU of a store opened with one, on a GPU. */
enum { SKEP_HOST = 0, SKEP_DEVICE = 1, SKEP_CUDA = 2 };

/* An engine's paged KV cache: for each layer a plane of pages of K and one of V. Where they
 * lie in one tensor, k[l] and v[l] point into it, and page_stride steps over both. */
typedef struct {
	uint32_t order;       /* SKEP_HND [head][token][dim], SKEP_NHD [token][head][dim] */
	uint32_t where;       /* SKEP_HOST, SKEP_DEVICE, SKEP_CUDA */
	uint32_t layers;      /* entries of k and v: the shape's */
	uint32_t page_tokens; /* need not be the block's */
	int64_t page_stride;  /* bytes from one page to the next */
	int64_t plane_bytes;  /* from a plane's first byte to its last page's last */
	const uint64_t *k;    /* address of each layer's plane of K, or of the latent */
	const uint64_t *v;    /* of V; NULL for a latent */
	const int64_t *slots; /* one for each token of the blocks restored: page * page_tokens +
	                         token in it; below 0: that token goes nowhere */
} skep_paged;

/* What computing tokens [a, b) costs an engine: fixed_ns for a launch + (b - a) * per_token_ns +
 * (b^2 - a^2) * per_square_ns. suffix is how many tokens it computes after what is restored. */
typedef struct {
	int64_t fixed_ns, per_token_ns;
	double per_square_ns;
	int64_t suffix;
} skep_cost;

/* The answer to a claim: compute tokens [from, to), which will not be loaded (none where they are
 * equal), and go on at jump. The chain's end there: nothing is left to claim. */
typedef struct {
	int64_t from, to, jump;
} skep_claimed;

/* What is known of the future of blocks; 0 and NULL say nothing. */
typedef struct {
	int64_t pin_ms;      /* to keep them at least, at most a day */
	int64_t next_use_ms; /* until they are used next, as expected */
	int64_t ttl_ms;      /* after which they are worth nothing */
	int32_t steps;       /* until the program that uses them runs */
	int32_t drop;        /* 1: they are worth nothing from now on, and pinned no more */
	const char *program; /* whose they are, in statistics: at most 512 bytes */
} skep_hints;

typedef uint64_t skep_events; /* a stream of events; 0 is none */

enum {
	SKEP_EVENT_ACCEPTED = 1, SKEP_EVENT_COMMITTED = 2, SKEP_EVENT_EVICTED = 3, SKEP_EVENT_MOVED = 4,
	SKEP_EVENT_DAMAGED = 5, SKEP_EVENT_DELETED = 6,
	SKEP_EVENT_PURGED = 7, /* of a namespace, 0: of several */
	SKEP_EVENT_GAP = 8,    /* this reader was too slow for lost events: take a snapshot */
	SKEP_EVENT_STORED = 9, /* of a snapshot */
	SKEP_EVENT_DEVICE = 10 /* a drive's condition: depth is its index, reason 20 that it is read around */
};

/* What happened to a block. */
typedef struct {
	uint64_t epoch, seq; /* the event's place: seq grows by one */
	int64_t unix_ns;
	uint64_t lost;
	uint32_t namespace_id;
	uint32_t depth;      /* in its chain */
	uint8_t kind;        /* SKEP_EVENT_... */
	uint8_t tier;        /* where the block is from now on, as of skep_exists */
	uint8_t reason;      /* a code: why, 0 where that is said by kind */
	uint8_t salted;      /* 1: keys are what is stored of a salted block */
	uint8_t has_parent;
	uint8_t zero[3];
	uint8_t key[SKEP_KEY], parent[SKEP_KEY];
} skep_event;

typedef uint64_t skep_writer; /* of a block; 0 is none */

/* A part of a block. */
typedef struct {
	const char *name; /* 1 to 64 bytes */
	int64_t bytes;
} skep_part;

typedef uint64_t skep_queue; /* of operations; 0 is none */

/* What an operation does, as the function of that name, and what it takes and gives besides keys and a scope. Those
 * from SKEP_OP_RESTORE on, pieces, and part of a load, which makes it a skep_load_part, are SKEP_VERSION 10's. */
enum {
	SKEP_OP_LOOKUP = 1,      /* lease_ms; done: blocks, tokens, bytes, lease */
	SKEP_OP_LOOKUP_EACH = 2, /* lease_ms; results: found; done: blocks, how many were, and lease */
	SKEP_OP_EXISTS = 3,      /* results: tiers */
	SKEP_OP_WANT = 4,        /* bytes; results: outcomes; reasons */
	SKEP_OP_LOAD = 5,        /* blocks, lengths, pieces, part, lease, from, to: layers; results; done: blocks that
	                            landed */
	SKEP_OP_SAVE = 6,        /* parent, depth, blocks, lengths, pieces; results: outcomes; reasons; done: blocks that
	                            are stored */
	SKEP_OP_SAVE_ACCEPTED = 7,
	SKEP_OP_DELETE = 8,      /* done: blocks */
	SKEP_OP_HINT = 9,        /* future; done: blocks */
	SKEP_OP_RENEW = 10,      /* lease, lease_ms; no scope, no keys */
	SKEP_OP_RELEASE = 11,    /* lease; no scope, no keys */
	SKEP_OP_FLUSH = 12,      /* no scope, no keys */
	SKEP_OP_RESTORE = 13,    /* dest, from, to, stream; done: blocks, how many arrived, in order */
	SKEP_OP_BEGIN = 14,      /* one key, parent, depth, parts and how many n, lease_ms: its life_ms; done: lease, the
	                            skep_writer */
	SKEP_OP_WRITE = 15,      /* writer, part, offset, n 1 and one of blocks and lengths: the bytes; no scope, no keys */
	SKEP_OP_COMMIT = 16,     /* writer; results: outcome; reasons; done: blocks, 1: it is stored; no scope, no keys */
	SKEP_OP_COMMIT_ACCEPTED = 17,
	SKEP_OP_ABORT = 18       /* writer, of which nothing else may be under way; no scope, no keys */
};

/* An operation. What it does not take is 0. */
typedef struct {
	uint32_t size; /* sizeof(skep_op); of a program of version 8 or 9, whose skep_op ends before pieces, its size */
	uint32_t what; /* SKEP_OP_... */
	uint64_t tag;  /* the caller's, in skep_done */
	const skep_scope *scope;
	const void *keys; /* n * SKEP_KEY bytes */
	const void *parent;
	uint32_t n, depth;
	void *const *blocks;
	const int64_t *lengths;
	uint64_t lease;
	int64_t lease_ms, bytes, timeout_ms;
	const skep_hints *future;
	uint8_t *results, *reasons; /* n bytes each (of a commit one), or NULL: nobody is told */
	const uint32_t *pieces; /* NULL: each block lies in one piece. Else block i lies in pieces[i] of them, which blocks
	                           and lengths have one after the other, of all blocks: at most 1,048,576, 1 or more bytes
	                           each, in the order of the block's bytes, which are as many as they are together. 0 of a
	                           load's leading blocks: as NULL in blocks. Pieces that do not lie one right behind the
	                           other are copied once, in shared or registered memory, too. */
	const char *part;       /* its name; NULL of a load: "kv" */
	const skep_paged *dest;
	skep_stream stream;
	skep_writer writer;
	const skep_part *parts;
	int64_t offset;         /* in the part */
	uint32_t from, to;      /* Of a restore blocks [from, to) of the chain. Of a load (SKEP_VERSION 11) layers [from,
	                           to) of the namespace's shape, 0 and 0: all. They go where they are in the whole block,
	                           whose other bytes stay as they are. Error 1: there are no such layers, or none at all: in
	                           opaque blocks, and in other parts than "kv". */
} skep_op;

/* An operation that is over. */
typedef struct {
	uint64_t tag;
	int32_t code; /* 0, else what the function would have returned */
	uint32_t what;
	int64_t blocks, tokens, bytes;
	uint64_t lease;
	char message[80]; /* of a code that is not 0, cut; ends with 0 */
} skep_done;

typedef uint64_t skep_restoring; /* a restore under way; 0 is none */
typedef uint64_t skep_prefill;   /* a prompt that is computed layer by layer; 0 is none */

/* How a block of a restore under way stands. */
enum { SKEP_WAITING = 0, SKEP_LANDED = 1, SKEP_GRANTED = 2, SKEP_MISSED = 3 };

#if !defined(SKEP_NO_WORD) && (defined(__GNUC__) || defined(__clang__))

/* Claims without a call, and from a process that has no skep in it: through a word of 8 bytes that is
 * given to skep_restore_begin, which may lie in memory that processes share.
 *
 *   bits   what     written by
 *    0-19  head     the engine, up only: blocks below it are computed or claimed
 *   20-39  may      the store: up to here the engine may claim by itself
 *   40-59  tail     the store: from here on all is loaded or on its way
 *   60     closed   the store: claim by a call (skep_claim)
 *   61     more     the store: something that did not come is to be computed too, by a call
 *
 * An engine claims by a compare-and-swap of the whole word that moves nothing but head, and no
 * further than may. The store believes no other change, and shuts the word of who makes one. */
#define SKEP_WORD_HEAD(w) ((int64_t)((w) & 0xfffff))
#define SKEP_WORD_MAY(w) ((int64_t)((w) >> 20 & 0xfffff))
#define SKEP_WORD_TAIL(w) ((int64_t)((w) >> 40 & 0xfffff))
#define SKEP_WORD_CLOSED(w) ((int)((w) >> 60 & 1))
#define SKEP_WORD_MORE(w) ((int)((w) >> 61 & 1))

/* An engine's side of a word. last begins as 0 and is skep_word_claim's. Safe for threads; processes have
 * one each. */
typedef struct {
	uint64_t *word;       /* at a multiple of 8 */
	int64_t block_tokens; /* the shape's */
	int64_t tokens;       /* where what is restored ends: blocks * block_tokens */
	uint64_t last;
} skep_word;

/* Claims what it can of tokens [from, to). 1: c is the answer, as skep_claim would give it. 0: the word
 * does not say: ask skep_claim, or, where that is another process's, look again when the word has
 * changed. idle says that the engine has nothing else to do: what it may have beyond may, only a
 * call says. Never waits. */
static inline int skep_word_claim(skep_word *b, int64_t from, int64_t to, int idle, skep_claimed *c) {
	uint64_t w = __atomic_load_n(b->word, __ATOMIC_SEQ_CST);
	for (;;) {
		int64_t head = SKEP_WORD_HEAD(w), may = SKEP_WORD_MAY(w), tail = SKEP_WORD_TAIL(w);
		int64_t unit = b->block_tokens, here = head * unit;
		int64_t reach = here < b->tokens ? here : b->tokens, n;
		uint64_t next;
		c->from = c->to = from;
		c->jump = from > reach ? from : reach;
		if (SKEP_WORD_CLOSED(w) || from < 0 || from >= to || to > b->tokens ||
		    (SKEP_WORD_MORE(w) && (head >= tail || from != here)))
			return 0;
		if (head >= tail) { /* the rest is there or on its way */
			c->jump = b->tokens;
			return 1;
		}
		if (from != here)
			return from > here; /* what lies before is not the word's */
		n = (to - from + unit - 1) / unit;
		if (n > may - head)
			n = may - head;
		if (n <= 0)
			/* The store has not seen our last claim yet. */
			return !idle && w != __atomic_load_n(&b->last, __ATOMIC_RELAXED);
		next = (w & ~(uint64_t)0xfffff) | (uint64_t)(head + n);
		if (!__atomic_compare_exchange_n(b->word, &w, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			continue; /* w is what it was meanwhile */
		__atomic_store_n(&b->last, next, __ATOMIC_RELAXED);
		c->to = (head + n) * unit < b->tokens ? (head + n) * unit : b->tokens;
		c->jump = head + n >= tail && !SKEP_WORD_MORE(w) ? b->tokens : c->to;
		return 1;
	}
}

#endif

#ifndef SKEP_NO_PROTOTYPES

/* Opens a store as a JSON document says, all but one of dir and connect optional:
 *   {"dir": "/path", "devices": 4, "capacity_bytes": 0, "dram_bytes": 0}      embedded
 *    (a store that is there keeps its devices and its cap, and 0 of both is what it has; with
 *    "change_capacity": true capacity_bytes is its cap from now on)
 *    and "bucket": {"endpoint": "https://...", "bucket": "...", "key_file": "...", ...}: object storage behind
 *    the drives,
 *    by the settings of that name of skep serve (docs/reference/configuration.md), sizes as bytes or text, "10TiB"
 *   {"connect": "unix:/path" or "host:port", "token": "..."}                  a server, and its whole cluster
 *    (or several addresses of a cluster, "a:7420,b:7420": those that are away are passed over)
 *    and "tls": {"ca": "file", "cert": "file", "key": "file", "name": "..."}, all of it optional, for TLS over TCP: who
 *    signs the servers' certificates (the system's when not given), a certificate of ours, and the name that
 *    theirs have
 *    and "shared_bytes": n of memory shared with a server on this machine (skep_shared_alloc);
 *    "lazy": true connects with the first call, so a server need not be there yet; "strict": true has a server that is
 *    slow, full or gone be an error (24, 25) where otherwise nothing is found there and puts are declined
 *   "gpu": {"backend": "sim", "memory_bytes": n, "local_blocks": n, "block_bytes": n,
 *           "borrow": ["/socket", ...]}                  GPU memory in front, own and lent
 * in gpu "layers": n of a block where an engine computes prompts by skep_prefill_begin, and "uncopied_bytes" (0:
 * any), the most bytes of what such prompts compute in lent memory that may not be stored behind yet;
 * and in gpu "direct_bytes" (eight blocks' when not given) of it for blocks on their way to an
 * engine's slots, and "pinned_bytes" of host memory that restores land in. */
int skep_open(const char *json, skep_store *out, skep_error *err);
/* Closes a store with all that is under way. It is closed whatever this returns, and restores and queues are ended.
 * After 0 all memory is the caller's. After an error what was the library's until then is until the process ends:
 * memory that a call of code 18 had, dest and word of restores under way, memory of operations not drained. */
int skep_close(skep_store s, skep_error *err);

/* The SKEP_VERSION of the library; and 1 in a process that is forked from the one that loaded it, else 0. Both work
 * in any process. */
int skep_version(void);
int skep_forked(void);

/* Opens a namespace: {"tenant" ("": the credential's), "name", "model", "chained": true, "shape": {"kind": 1,
 * "layers", "kv_heads", "head_dim", "element": 1, "block_tokens", "order": 0}}.
 * "chained": true and "each": true: every key is a chain of its own, and calls take keys as of an unchained namespace;
 * the first writer of a key wins, and a cluster's replicas and object storage are for such blocks. One store has a
 * namespace open one way, else error 17; skep_restore and what restores under way still take keys as one chain.
 * (SKEP_VERSION 9.)
 * skep_namespace_within (SKEP_VERSION 5) ends by timeout_ms, skep_namespace, and 0, by 30 s. */
int skep_namespace(skep_store s, const char *json, uint32_t *id, skep_error *err);
int skep_namespace_within(skep_store s, const char *json, int64_t timeout_ms, uint32_t *id, skep_error *err);

/* Stores n successive blocks of a chain, each of block_bytes in the shape's layout ([layer]
 * [K, V] and then the shape's order). parent is the key before the first, NULL with depth 0.
 * outcomes[i]: 0 declined, 1 committed, 2 accepted, 3 exists. With error 18 (memory not released) a
 * drive that hangs has the blocks' memory yet: leave it as it is, and do not free it before skep_close
 * has returned 0. */
int skep_put(skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *keys, uint32_t n,
             const void *const *blocks, int64_t block_bytes, uint8_t *outcomes, skep_error *err);

/* Finds the longest prefix of n keys that can be restored, and leases it for lease_ms (0: the
 * default, below 0: not at all). */
int skep_lookup(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t lease_ms, skep_found *out,
                skep_error *err);
/* The same, in at most timeout_ms (0: 30 s). */
int skep_lookup_within(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t lease_ms,
                       int64_t timeout_ms, skep_found *out, skep_error *err);
int skep_release(skep_store s, uint64_t lease, skep_error *err);

/* Finds which of n keys can be restored now, each by itself, and leases all of them under one lease: found[i] is 1 or
 * 0, and *lease 0 where none was asked for, nothing is found, or no more may be leased. In a chained namespace the keys
 * are one chain, as of skep_lookup, without "each". Of a server that is too old for such a call all are found and none
 * leased with "each", and only those in front of the first that is missing without it. lease_ms and timeout_ms are
 * skep_lookup_within's. (SKEP_VERSION 6.) */
int skep_lookup_each(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t lease_ms,
                     int64_t timeout_ms, uint8_t *found, uint64_t *lease, skep_error *err);

/* Makes a lease last for lease_ms from now (0: the default), at most ten minutes. Error 10: it has run out. */
int skep_renew(skep_store s, uint64_t lease, int64_t lease_ms, skep_error *err);

/* What follows is for blocks as a whole: of any namespace, opaque ones among them ("shape": {"block_tokens": 1}, bytes
 * of any length). timeout_ms bounds a call; 0: 30 s. It may take ten seconds more where drives do not let go of memory.
 * Of a server of this machine ("shared_bytes") the drives read into memory of skep_shared_alloc and write from it;
 * blocks elsewhere go through some of that memory and are copied once, or through the socket where there is not enough
 * of it. */

/* Says where the block of each of n keys is: 0 nowhere, else 1 on a drive, 2 in memory, 3 on another node, 4 in GPU
 * memory, 5 in object storage. In a chained namespace the keys are one chain, first block first, and behind the first
 * that is missing all are. It promises nothing: a lookup leases. */
int skep_exists(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t timeout_ms, uint8_t *tiers,
                skep_error *err);

/* Loads the blocks of n keys, block i to blocks[i], which has room for lengths[i] bytes and is as long. results[i]: 0
 * it is there, each byte of it checked; else the code of why not, and the memory is undefined: 21 or 2 it is not
 * stored, 17 it has another length, 24 the server is gone, 16 it is late. Places must not overlap. lease is the
 * lookup's that found them, 0 none. Leading blocks, but not all, may be NULL: they are not loaded, have result 0 and do
 * not count among the 65,536 that a call may have. In a chained namespace they say what the others continue, without
 * which object storage does not give those.
 * Returns 0 when each block is answered; an error ends the rest, whose results have its code. Error 18: a drive may
 * write yet, leave all the memory as it is and do not free it before skep_close has returned 0. */
int skep_load(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint64_t lease, void *const *blocks,
              const int64_t *lengths, int64_t timeout_ms, uint8_t *results, skep_error *err);

/* Stores blocks as skep_put does, block i of lengths[i] bytes. reasons, where not NULL: the code of why outcomes[i] is
 * 0 (declined). In an unchained namespace parent is NULL, depth 0, and the last writer wins ("each": the first). An
 * error ends the rest, which are declined for its code. Error 18 as with skep_put. */
int skep_save(skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *keys, uint32_t n,
              const void *const *blocks, const int64_t *lengths, int64_t timeout_ms, uint8_t *outcomes,
              uint8_t *reasons, skep_error *err);

/* skep_save that waits, for blocks of a chained namespace, only until the store has copied them to its memory: they can
 * be loaded from then on, their outcome is 2, and they go to the drives meanwhile. Blocks for which it has no room
 * there, and unchained ones, are stored as by skep_save. One that a crash or a full drive takes away is a miss.
 * skep_flush waits until all that was accepted before it is on the drives, or gone. (SKEP_VERSION 7.) */
int skep_save_accepted(skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *keys,
                       uint32_t n, const void *const *blocks, const int64_t *lengths, int64_t timeout_ms,
                       uint8_t *outcomes, uint8_t *reasons, skep_error *err);
int skep_flush(skep_store s, int64_t timeout_ms, skep_error *err);

/* Says of each of n keys what a put of its block would be, before its bytes are copied: outcomes[i] is SKEP_WANTED, or
 * what skep_save's would be. Of a chained namespace it finds keys that begin inside a chain, too, which a lookup does
 * not: 3 (exists) says that the block is stored, and not that those before it are. In an unchained one all are wanted.
 * bytes: of all blocks together, 0 where that is not known. reasons, where not NULL: the code of why outcomes[i] is 0.
 * It promises nothing. */
int skep_want(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t bytes, int64_t timeout_ms,
              uint8_t *outcomes, uint8_t *reasons, skep_error *err);

/* Removes blocks, leased ones too: *deleted of n were there. */
int skep_delete(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t timeout_ms,
                uint32_t *deleted, skep_error *err);

/* Tells of the future of blocks: *known of the n are stored. It changes what is kept and what is read ahead, never what
 * is right. Error 5 (quota): the tenant may pin no more, and nothing is pinned. (SKEP_VERSION 8, as all up to
 * skep_direct.) */
int skep_hint(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, const skep_hints *future,
              int64_t timeout_ms, uint32_t *known, skep_error *err);

/* Makes everything of one of these invisible at once, for good: a tenant; a model; where both are NULL, the scope's
 * salt, or its namespace where it has no salt. It waits until that is durable. Error 26 (denied): others' blocks are an
 * operator's. */
int skep_purge(skep_store s, const char *tenant, const char *model, const skep_scope *scope, int64_t timeout_ms,
               skep_error *err);

/* Deletes a namespace with its blocks. Its name may be used again, for something else too; its number is of none. */
int skep_namespace_delete(skep_store s, uint32_t id, int64_t timeout_ms, skep_error *err);

/* Lists keys of a namespace's blocks, but for salted ones: *count of them, at most n, to keys. *place is 0 to begin
 * with, then where to go on, and 0 again when that was all. A key may be told of twice, and none that is stored all
 * along is left out. *count may be 0 before the end. */
int skep_list(skep_store s, uint32_t id, uint64_t *place, void *keys, uint32_t n, int64_t timeout_ms, uint32_t *count,
              skep_error *err);

/* Says what the store did since it was opened, and how it stands, as a JSON document (skep.Stats of the Go package,
 * times in UTC). *bytes is its length; where it is not below room nothing is written, else the text and a 0. */
int skep_stats(skep_store s, int64_t timeout_ms, char *json, uint64_t room, uint64_t *bytes, skep_error *err);

/* Follows what happens to blocks: from event (epoch, seq) on, of 0 and 0 from the next; with snapshot 1 first of all
 * that are stored, kind SKEP_EVENT_STORED, and (epoch, seq) is not looked at. Error 1: an event that is yet to come. */
int skep_events_open(skep_store s, uint64_t epoch, uint64_t seq, int snapshot, skep_events *out, skep_error *err);
/* Waits for events, at most timeout_ms (0: 30 s), and takes *got of them, at most n; none is no error. Error 3: the
 * store is closed; 24: the server is gone, and who goes on opens anew with the last event's seq + 1. */
int skep_events_next(skep_events e, int64_t timeout_ms, skep_event *into, uint32_t n, uint32_t *got, skep_error *err);
int skep_events_close(skep_events e, skep_error *err);

/* A block of several parts, from as many writers as it has: parts of n names and sizes, "kv" the usual one, which a
 * block is found with when all of it is written. Who does not commit it within life_ms (0: a minute) has it aborted.
 * (SKEP_VERSION 8, with all up to skep_load_part.) */
int skep_begin(skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *key,
               const skep_part *parts, uint32_t n, int64_t life_ms, skep_writer *out, skep_error *err);
/* Copies bytes to offset of a part. Any thread may; ranges come in any order and do not overlap. */
int skep_write(skep_writer w, const char *part, int64_t offset, const void *bytes, int64_t n, int64_t timeout_ms,
               skep_error *err);
/* Stores the block, waiting as skep_save does, or, with accepted 1, as skep_save_accepted, and ends the writer. outcome
 * and reason, which may be NULL, are as of skep_save. Error 1: a byte was not written, and the writer goes on. */
int skep_commit(skep_writer w, int accepted, int64_t timeout_ms, uint8_t *outcome, uint8_t *reason, skep_error *err);
/* Drops what was written, and ends the writer. */
int skep_abort(skep_writer w, skep_error *err);
/* Loads a part of each of n blocks, as skep_load does. */
int skep_load_part(skep_store s, const skep_scope *scope, const char *part, const void *keys, uint32_t n,
                   uint64_t lease, void *const *blocks, const int64_t *lengths, int64_t timeout_ms, uint8_t *results,
                   skep_error *err);

/* What follows does calls side by side without a thread of the program's for each: operations are submitted, and
 * drained when they are over. Any thread may submit and drain. */

/* Makes a queue of depth operations, 1 to 4096, that are under way or not yet drained. *eventfd, where it is not NULL,
 * is a descriptor that can be read, as poll and epoll say, while there is something to drain: of the queue's, not to be
 * read or closed. Error 19: not on this system. (SKEP_VERSION 8, with all of queues.) */
int skep_queue_open(skep_store s, uint32_t depth, skep_queue *out, int *eventfd, skep_error *err);
/* Begins operations, in order, until the queue is full or one is wrong: *taken of n. A full queue is no error; a wrong
 * operation is, and *taken says which. It does not wait. They run side by side: one that needs another's result is
 * submitted when that was drained. Operations, keys, salts, names and lists of addresses are copied. The blocks'
 * memory, results, reasons, and k, v and slots of dest, are the library's until the operation is drained; of one that
 * ends with code 18, as with skep_load. Of a default stream of SKEP_CUDA the calling thread's context is meant.
 * Error 1: a size that is neither of those; stream 2 of SKEP_CUDA, which other threads do not have: give one of
 * cuStreamCreate. */
int skep_submit(skep_queue q, const skep_op *ops, uint32_t n, uint32_t *taken, skep_error *err);
/* Takes *got of what is over, at most n, each once, and writes their results. It does not wait. */
int skep_drain(skep_queue q, skep_done *into, uint32_t n, uint32_t *got, skep_error *err);
/* Ends what is under way, and the queue; what was not drained is gone. skep_close does it, too. Error 18: not all is
 * over, call it again; until it has returned 0 no memory of operations is the caller's. Where one that was not drained
 * had ended with code 18 it stays so until skep_close. timeout_ms 0: 30 s. */
int skep_queue_close(skep_queue q, int64_t timeout_ms, skep_error *err);

/* Whether drives write to memory of this process: 0 they do, into any of an embedded store, into skep_shared_alloc's of
 * a server. Else the code and the text say why not: 19 there is no shared memory, or why the server did not take it. */
int skep_direct(skep_store s, int64_t timeout_ms, skep_error *err);

/* Restores blocks [from, to) of the chain of n keys into dest. *blocks is how many of them, in
 * order, arrived: slots of later ones are undefined, and they are to be computed. On a device
 * the copies are queued on the stream, behind what is there and before what comes after; on the
 * host stream is 0. With SKEP_CUDA blocks land in pinned memory (of the stream's context, at most
 * 256 MiB, kept until skep_close) and are copied from there: the context has to last that long. A
 * block that is not there is no error. timeout_ms bounds the whole; 0: 30 s. */
int skep_restore(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t from, uint32_t to,
                 const skep_paged *dest, skep_stream stream, int64_t timeout_ms, uint32_t *blocks, skep_error *err);
/* The same with layers [first, last) of the blocks, 0 and 0: all. dest's planes of other layers are not looked at and
 * may be NULL. Error 1: there are no such layers. (SKEP_VERSION 12.) */
int skep_restore_layers(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t from, uint32_t to,
                        uint32_t first, uint32_t last, const skep_paged *dest, skep_stream stream, int64_t timeout_ms,
                        uint32_t *blocks, skep_error *err);

/* Restores as skep_restore does, by two pointers: blocks are loaded from the tail down while the engine
 * computes from the head up, claiming what it is about to compute. cost says what that costs. SKEP_HOST,
 * and SKEP_CUDA of at most 32 MiB on a stream other than 2 (error 1: other threads copy; give one of cuStreamCreate).
 * word is NULL, or 8 bytes at a multiple of 8 that claims may go by as well: the
 * caller's own, in memory shared with whom it likes; of a server's store, memory of
 * skep_shared_alloc. Positions, here and in the word, count from the chain's first key. dest and word belong to the
 * restore until skep_restore_end, or skep_close, has returned 0. timeout_ms bounds the whole; 0: 30 s. Error 18: there
 * is no restore to end, but dest and word may be written to until skep_close has returned 0. */
int skep_restore_begin(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t from, uint32_t to,
                       const skep_paged *dest, skep_stream stream, const skep_cost *cost, uint64_t *word,
                       int64_t timeout_ms, skep_restoring *out, skep_error *err);

/* Claims tokens [from, to), whole blocks, before they are computed. Nothing granted and jump at
 * from: ask again when something has landed. */
int skep_claim(skep_restoring r, int64_t from, int64_t to, int idle, skep_claimed *out, skep_error *err);

/* Tells that tokens [from, to), which were granted, are computed, in a step of took_ns that did other_ns of
 * other work besides. 0 of both says nothing of time. */
int skep_computed(skep_restoring r, int64_t from, int64_t to, int64_t took_ns, int64_t other_ns, skep_error *err);

/* Says how blocks [from, to) stand, one byte each, once any has changed since the last call or timeout_ms
 * (0: at once) has passed. *waiting is how many are neither landed, granted nor missed. A block that is
 * missed is the engine's to claim and compute; all that waited when timeout_ms of the restore was over are, which is no
 * error. With SKEP_CUDA landed means queued on the stream. Once none waits, an error says what else went wrong, with
 * states and *waiting written: 20 that the GPU failed, and what landed there is not to be relied on. */
int skep_restore_poll(skep_restoring r, int64_t timeout_ms, uint8_t *states, uint32_t *waiting, skep_error *err);

/* Ends a restore: what has not landed will not. Once it returns 0 neither dest nor word is written to any more.
 * Error 18 (not released): a drive may write yet; call it again, or skep_close, after which there is no restore to end
 * (error 1). */
int skep_restore_end(skep_restoring r, int64_t timeout_ms, skep_error *err);

/* A prompt that an engine computes layer by layer while most of its blocks are in lent GPU memory: of those one layer
 * at a time is in own memory, in places that are theirs until skep_prefill_end. For memory of the store's own device
 * (SKEP_DEVICE), of a store opened with "layers".
 *
 * Layers are counted on through all steps: layer l of the model in step s is n = s * layers + l. For each n, in this
 * order:
 *
 *   skep_prefill_loaded    the stream waits until the history's layer is in its places
 *   (the engine)           its stream writes the new blocks' entries of the layer to their places
 *   skep_prefill_written   they may be stored, once the stream gets there
 *   (the engine)           its stream reads the places: attention
 *   skep_prefill_read      they may be written again, once the stream gets there
 *
 * Calls of one prefill come from one thread at a time. When something fails no layer is held back any more, and
 * skep_prefill_commit says so: what was computed is worth nothing. */

/* Takes places for a prompt of n blocks and loads what of the first history ones is found: *found of them. The others
 * are to be computed. Error 23 (no memory): the prompt is too long for what is lent now; 25 (overloaded): others have
 * the room. */
int skep_prefill_begin(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t history,
                       int64_t timeout_ms, skep_prefill *out, uint32_t *found, skep_error *err);

/* Says where the layer's bytes of each of the n blocks are, in the order of the shape: [K, V] and then its order. */
int skep_prefill_places(skep_prefill p, uint32_t layer, uint64_t *at, skep_error *err);

/* Begins a step over all layers that computes the blocks before block to which are not computed yet. Steps may be
 * queued one after the other. */
int skep_prefill_step(skep_prefill p, uint32_t to, skep_error *err);

int skep_prefill_loaded(skep_prefill p, uint32_t n, skep_stream stream, skep_error *err);
int skep_prefill_written(skep_prefill p, uint32_t n, skep_stream stream, skep_error *err);
int skep_prefill_read(skep_prefill p, uint32_t n, skep_stream stream, skep_error *err);

/* Waits for the steps, and stores the blocks they computed: *stored of them, in order. */
int skep_prefill_commit(skep_prefill p, int64_t timeout_ms, uint32_t *stored, skep_error *err);

/* Gives everything back; without a commit what was computed is gone. It waits for streams that wait for layers:
 * skep_prefill_read is to be called for each that skep_prefill_loaded was. Error 18 (not released): call it again. */
int skep_prefill_end(skep_prefill p, int64_t timeout_ms, skep_error *err);

/* The same as skep_word_claim, for languages that have no compare-and-swap; nothing of Go is called. */
int skep_word_claim_call(uint64_t *word, uint64_t *last, int64_t block_tokens, int64_t tokens, int64_t from, int64_t to,
                         int idle, skep_claimed *out);

/* Memory that the store's server maps too ("shared_bytes"), at a multiple of 4096. Another process of the
 * engine maps it as well, by descriptor *fd (of this process, not the caller's to close) and *offset in it. */
int skep_shared_alloc(skep_store s, int64_t bytes, void **memory, int *fd, int64_t *offset, skep_error *err);
int skep_shared_free(skep_store s, void *memory, skep_error *err);

/* Has the server of a store ("shared_bytes", however few) map memory that the program has anyway: bytes at memory,
 * whole pages, which are mapped, shared and writable, from offset on of a file of tmpfs (/dev/shm, a memfd) or
 * hugetlbfs. fd is open for reading and writing and stays the caller's; -1: the file is found, where this process can
 * open it or has it open. Then, until skep_mem_unregister, the drives write there what skep_load loads, and what
 * skep_save is given is read there, without the copy of other memory. An embedded store's drives do so anywhere: this
 * does nothing there. Error 19 says why the memory cannot be shared (it is private; a file elsewhere; no shared_bytes;
 * an old server), 26 that the server is another user's: calls work as before. The file may be unlinked. Where it is cut
 * short, blocks whose place is gone have the result 17, and from then on calls with any of the memory return 1 until it
 * is registered anew. timeout_ms 0: 30 s. (SKEP_VERSION 4.) */
int skep_mem_register(skep_store s, void *memory, int64_t bytes, int fd, int64_t offset, int64_t timeout_ms,
                      skep_error *err);
/* Has the server unmap it, once no call uses it: nobody else writes there afterwards. Error 18, and 16 where calls do
 * not end in time: it is registered as before. */
int skep_mem_unregister(skep_store s, void *memory, int64_t timeout_ms, skep_error *err);

/* A device to try things on where there is none: memory and streams of the simulated GPU of a
 * store opened with one. The addresses mean something to skep only. An engine on a real GPU
 * brings its own. */
int skep_device_alloc(skep_store s, int64_t bytes, uint64_t *address, skep_error *err);
int skep_device_free(skep_store s, uint64_t address, skep_error *err);
int skep_device_read(skep_store s, uint64_t address, int64_t bytes, void *to, skep_error *err);
int skep_device_write(skep_store s, uint64_t address, int64_t bytes, const void *from, skep_error *err);
int skep_stream_copy(skep_store s, skep_stream stream, uint64_t to, uint64_t from, int64_t bytes, skep_error *err);
int skep_stream_new(skep_store s, skep_stream *out, skep_error *err);
int skep_stream_sync(skep_store s, skep_stream stream, int64_t timeout_ms, skep_error *err);
int skep_stream_free(skep_store s, skep_stream stream, skep_error *err);

#endif /* SKEP_NO_PROTOTYPES */

#ifdef __cplusplus
}
#endif
#endif
