/* skep.h: KV blocks of language models, stored and given back into an engine's paged cache.
 *
 * Every function returns 0, or a code and, in *err where that is not NULL, the code and a
 * message: codes are skep's error kinds (1 invalid, 2 not found, 19 unsupported, 20 device
 * failed, ...), -1 any other. Functions may be called from any thread. Memory given to a
 * function is the caller's and is not kept after it returns, but for the destination of a
 * skep_restore with a stream: device memory that is written to until the stream gets past it.
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

#define SKEP_VERSION 1
#define SKEP_KEY 32 /* bytes of a key */

typedef uint64_t skep_store;  /* 0 is none */
typedef uint64_t skep_stream; /* a CUstream as a number (0: the default one), or skep_stream_new's */

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

#ifndef SKEP_NO_PROTOTYPES

/* Opens a store as a JSON document says, all but one of dir and connect optional:
 *   {"dir": "/path", "devices": 4, "capacity_bytes": 0, "dram_bytes": 0}      embedded
 *   {"connect": "unix:/path" or "host:port", "token": "..."}                  a server
 *   "gpu": {"backend": "sim", "memory_bytes": n, "local_blocks": n, "block_bytes": n,
 *           "borrow": ["/socket", ...]}                  GPU memory in front, own and lent
 * and in gpu "direct_bytes" (eight blocks' when not given) of it for blocks on their way to an
 * engine's slots, and "pinned_bytes" of host memory that restores land in. */
int skep_open(const char *json, skep_store *out, skep_error *err);
int skep_close(skep_store s, skep_error *err);

/* Opens a namespace: {"tenant", "name", "model", "chained": true, "shape": {"kind": 1,
 * "layers", "kv_heads", "head_dim", "element": 1, "block_tokens", "order": 0}}. */
int skep_namespace(skep_store s, const char *json, uint32_t *id, skep_error *err);

/* Stores n successive blocks of a chain, each of block_bytes in the shape's layout ([layer]
 * [K, V] and then the shape's order). parent is the key before the first, NULL with depth 0.
 * outcomes[i]: 0 declined, 1 committed, 2 accepted, 3 exists. */
int skep_put(skep_store s, const skep_scope *scope, const void *parent, uint32_t depth, const void *keys, uint32_t n,
             const void *const *blocks, int64_t block_bytes, uint8_t *outcomes, skep_error *err);

/* Finds the longest prefix of n keys that can be restored, and leases it for lease_ms (0: the
 * default, below 0: not at all). */
int skep_lookup(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, int64_t lease_ms, skep_found *out, skep_error *err);
int skep_release(skep_store s, uint64_t lease, skep_error *err);

/* Restores blocks [from, to) of the chain of n keys into dest. *blocks is how many of them, in
 * order, arrived: slots of later ones are undefined, and they are to be computed. On a device
 * the copies are queued on the stream, behind what is there and before what comes after; on the
 * host stream is 0. With SKEP_CUDA blocks land in pinned memory (of the stream's context, at most
 * 256 MiB, kept until skep_close) and are copied from there: the context has to last that long. A
 * block that is not there is no error. timeout_ms bounds the whole; 0: 30 s. */
int skep_restore(skep_store s, const skep_scope *scope, const void *keys, uint32_t n, uint32_t from, uint32_t to,
                 const skep_paged *dest, skep_stream stream, int64_t timeout_ms, uint32_t *blocks, skep_error *err);

/* A device to try things on where there is none: memory and streams of the simulated GPU of a
 * store opened with one. The addresses mean something to skep only. An engine on a real GPU
 * brings its own. */
int skep_device_alloc(skep_store s, int64_t bytes, uint64_t *address, skep_error *err);
int skep_device_free(skep_store s, uint64_t address, skep_error *err);
int skep_device_read(skep_store s, uint64_t address, int64_t bytes, void *to, skep_error *err);
int skep_stream_new(skep_store s, skep_stream *out, skep_error *err);
int skep_stream_sync(skep_store s, skep_stream stream, int64_t timeout_ms, skep_error *err);
int skep_stream_free(skep_store s, skep_stream stream, skep_error *err);

#endif /* SKEP_NO_PROTOTYPES */

#ifdef __cplusplus
}
#endif
#endif
