/* An emulated engine that computes a prompt layer by layer, with most of its KV in GPU memory that another
 * process lends. Its "model" is such that every byte counts: what a layer has new is drawn from a checksum of
 * all that attention has read before, in order, in the layers below and in earlier steps. So what it prints at the
 * end, a checksum of everything, is the same only if every byte of every layer was right.
 *
 *   prefill DIR SOCKET|- LOCAL BLOCKS HISTORY STEP TIMES
 *
 * with own memory for LOCAL blocks, and lent memory of who lends at SOCKET, or none. Attention is copies of all it reads
 * on the engine's stream, to where the host sums it up. */
#define _GNU_SOURCE
#include "skep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 4, HEADS = 2, DIM = 64, BLOCK = 16, LAYER = 2 * HEADS * BLOCK * DIM * 2, BYTES = LAYERS * LAYER, MOST = 64, NO_MEMORY = 23, OVERLOADED = 25 };

static skep_error err;
static skep_store store;
static skep_scope scope;
static skep_stream stream;
static uint64_t fresh, seen; /* device memory: what is computed, what attention has read */
static uint8_t keys[MOST][SKEP_KEY], host[MOST * LAYER];

static void must(int rc, const char *what) {
	if (rc != 0) {
		fprintf(stderr, "%s: %d %s\n", what, rc, err.message);
		exit(1);
	}
}

static void check(int ok, const char *what) {
	if (!ok) {
		fprintf(stderr, "wrong: %s (%d %s)\n", what, err.code, err.message);
		exit(1);
	}
}

static uint64_t sum(uint64_t h, const uint8_t *b, int64_t n) {
	for (int64_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 1099511628211u;
	return h;
}

/* draw fills n bytes from a seed. */
static void draw(uint8_t *to, int n, uint64_t seed) {
	for (int i = 0; i < n; i++) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		to[i] = (uint8_t)(seed >> 24);
	}
}

/* name gives blocks from one on names that depend on a number: other blocks each time. */
static void name(int from, int to, int number) {
	for (int b = from; b < to; b++) {
		memset(keys[b], b + 1, SKEP_KEY);
		memcpy(keys[b], &number, sizeof number);
	}
}

static void put_history(int n) {
	static uint8_t block[BYTES];
	name(0, n, 0);
	for (int b = 0; b < n; b++) {
		const void *blocks[1] = {block};
		uint8_t outcome;
		draw(block, BYTES, 977 + b);
		must(skep_put(store, &scope, b ? keys[b - 1] : NULL, b, keys[b], 1, blocks, BYTES, &outcome, &err), "put");
	}
}

/* layer computes layer l of a step for blocks [from, to), the n-th of the prompt, and gives the checksum on. */
static uint64_t layer(skep_prefill p, int n, int l, int from, int to, uint64_t h) {
	uint64_t at[MOST];
	must(skep_prefill_places(p, l, at, &err), "places");
	must(skep_prefill_loaded(p, n, stream, &err), "loaded");
	for (int b = from; b < to; b++) {
		draw(host, LAYER, h + b * 7919 + 1);
		must(skep_device_write(store, fresh + (uint64_t)b * LAYER, LAYER, host, &err), "compute");
		must(skep_stream_copy(store, stream, at[b], fresh + (uint64_t)b * LAYER, LAYER, &err), "write");
	}
	must(skep_prefill_written(p, n, stream, &err), "written");
	for (int b = 0; b < to; b++)
		must(skep_stream_copy(store, stream, seen + (uint64_t)b * LAYER, at[b], LAYER, &err), "attention");
	must(skep_prefill_read(p, n, stream, &err), "read");
	must(skep_stream_sync(store, stream, 20000, &err), "sync");
	must(skep_device_read(store, seen, (int64_t)to * LAYER, host, &err), "look");
	return sum(h, host, (int64_t)to * LAYER);
}

/* prompt computes a prompt of n blocks and stores it. 0: there is no room for it now. */
static int prompt(int n, int history, int step, uint64_t *h) {
	skep_prefill p;
	uint32_t found, stored;
	int rc = skep_prefill_begin(store, &scope, keys, n, history, 0, &p, &found, &err);
	if (rc == NO_MEMORY || rc == OVERLOADED)
		return 0;
	must(rc, "begin");
	check((int)found == history, "all of the history");
	*h = 1469598103934665603u;
	for (int from = history, k = 0; from < n; from += step) {
		int to = from + step < n ? from + step : n;
		must(skep_prefill_step(p, to, &err), "step");
		for (int l = 0; l < LAYERS; l++)
			*h = layer(p, k++, l, from, to, *h);
	}
	must(skep_prefill_commit(p, 0, &stored, &err), "commit");
	check((int)stored == n - history, "all that was computed is stored");
	must(skep_prefill_end(p, 0, &err), "end");
	check(skep_prefill_end(p, 0, &err) == 1, "once");
	return 1;
}

/* compare restores the prompt to the host and sums up what is stored. */
static uint64_t compare(int n) {
	static uint8_t cache[MOST * BYTES];
	static int64_t slots[MOST * BLOCK];
	uint64_t k[LAYERS], v[LAYERS];
	uint32_t arrived;
	for (int l = 0; l < LAYERS; l++) {
		k[l] = (uint64_t)(uintptr_t)cache + (uint64_t)l * n * LAYER;
		v[l] = k[l] + (uint64_t)n * LAYER / 2;
	}
	for (int i = 0; i < n * BLOCK; i++)
		slots[i] = i;
	skep_paged dest = {SKEP_HND, SKEP_HOST, LAYERS, BLOCK, LAYER / 2, (int64_t)n * LAYER / 2, k, v, slots};
	must(skep_restore(store, &scope, keys, n, 0, n, &dest, 0, 0, &arrived, &err), "restore");
	check((int)arrived == n, "all of it is there");
	return sum(1469598103934665603u, cache, (int64_t)n * BYTES);
}

int main(int argc, char **argv) {
	char json[4096], borrow[512] = "";
	check(argc == 8, "prefill DIR SOCKET|- LOCAL BLOCKS HISTORY STEP TIMES");
	int n = atoi(argv[4]), history = atoi(argv[5]), times = atoi(argv[7]);
	check(n <= MOST && history < n, "blocks");
	if (strcmp(argv[2], "-"))
		snprintf(borrow, sizeof borrow, ", \"borrow\": [\"%s\"]", argv[2]);
	snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 2, \"capacity_bytes\": 67108864, \"gpu\": {\"backend\": \"sim\", \"memory_bytes\": 268435456,"
		" \"local_blocks\": %s, \"block_bytes\": %d, \"layers\": %d%s}}", argv[1], argv[3], BYTES, LAYERS, borrow);
	must(skep_open(json, &store, &err), "open");
	must(skep_namespace(store, "{\"tenant\": \"t\", \"name\": \"n\", \"model\": \"m\", \"copies\": 1, \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 4,"
		" \"kv_heads\": 2, \"head_dim\": 64, \"element\": 1, \"block_tokens\": 16}}", &scope.namespace_id, &err), "namespace");
	must(skep_stream_new(store, &stream, &err), "stream");
	must(skep_device_alloc(store, (int64_t)n * LAYER, &fresh, &err), "memory");
	must(skep_device_alloc(store, (int64_t)n * LAYER, &seen, &err), "memory");
	put_history(history);
	for (int i = 0; i < times; i++) {
		uint64_t h;
		int tries = 0;
		name(history, n, i + 1);
		while (!prompt(n, history, atoi(argv[6]), &h)) { /* the lender has its memory back, for a while */
			struct timespec ms = {0, 1000000};
			check(++tries < 20000, "there is room once");
			nanosleep(&ms, NULL);
		}
		printf("%016llx %016llx\n", (unsigned long long)h, (unsigned long long)compare(n));
	}
	skep_prefill p;
	uint32_t found;
	static uint8_t many[4096][SKEP_KEY];
	check(skep_prefill_begin(store, &scope, many, 4096, 0, 0, &p, &found, &err) == NO_MEMORY, "too long");
	printf("%s\n", err.message);
	must(skep_stream_free(store, stream, &err), "free");
	must(skep_device_free(store, fresh, &err), "free");
	must(skep_device_free(store, seen, &err), "free");
	must(skep_close(store, &err), "close");
	return 0;
}
