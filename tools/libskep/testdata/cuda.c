/* An engine on a GPU, in miniature: its own context, stream and paged KV cache in device memory.
 * It has blocks restored into it behind work of its own that has not begun, queues work that reads
 * the cache, and compares every byte that work saw. Runs on a driver, and on the fake one, where it
 * also sees that nothing is left. */
#define _GNU_SOURCE
#include <cuda.h>

#include "skep.h"

#ifndef CU_MEMHOSTALLOC_PORTABLE /* a cut header has lost them */
#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTALLOC_DEVICEMAP 2
#endif

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, HEADS = 2, DIM = 8, BLOCK = 4, BLOCKS = 5, TOKENS = BLOCKS * BLOCK, BYTES = LAYERS * 2 * HEADS * BLOCK * DIM * 2, VECTOR = DIM * 2, SLOTS = 64 };
enum { MOST = 2 * LAYERS * SLOTS * HEADS * VECTOR, WHOLE = 2 << 20 };

static skep_error err;

static void must(int rc, const char *what) {
	if (rc != 0) {
		fprintf(stderr, "%s: %d %s\n", what, rc, err.message);
		exit(1);
	}
}

static void check(int ok, const char *what) {
	if (!ok) {
		fprintf(stderr, "wrong: %s\n", what);
		exit(1);
	}
}

static uint8_t byte(int token, int layer, int v, int head, int i) {
	return (uint8_t)(token * 31 + layer * 101 + v * 57 + head * 13 + i * 3 + 1);
}

static void fill(uint8_t *to, int block) {
	for (int l = 0; l < LAYERS; l++)
		for (int v = 0; v < 2; v++)
			for (int h = 0; h < HEADS; h++)
				for (int t = 0; t < BLOCK; t++)
					for (int i = 0; i < VECTOR; i++)
						*to++ = byte(block * BLOCK + t, l, v, h, i);
}

static CUstream mine, other;
static CUdeviceptr cache, seen;
static uint64_t *gate; /* pinned: the stream waits for it */
static uint8_t *host;  /* pinned */
static uint64_t opened;

/* queued has a queue restore, and says how many blocks arrived. */
static uint32_t queued(skep_store s, skep_scope *scope, const uint8_t *keys, uint32_t n, const skep_paged *dest, skep_stream stream) {
	skep_op op = {.size = sizeof op, .what = SKEP_OP_RESTORE, .scope = scope, .keys = keys, .n = n, .to = n, .dest = dest, .stream = stream};
	skep_queue q;
	skep_done done;
	uint32_t taken, got = 0;
	int fd;
	must(skep_queue_open(s, 1, &q, &fd, &err), "queue");
	must(skep_submit(q, &op, 1, &taken, &err), "submit");
	while (!got) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		poll(&p, 1, 60000);
		must(skep_drain(q, &done, 1, &got, &err), "drain");
	}
	must(done.code, done.message);
	must(skep_queue_close(q, 0, &err), "close");
	return (uint32_t)done.blocks;
}

enum { CALL, TWO_POINTERS, QUEUE, SOME_LAYERS, WAYS };

static void restore(skep_store s, skep_scope *scope, const uint8_t *keys, int order, int page, int together, int way) {
	int64_t page_bytes = (int64_t)page * HEADS * VECTOR, stride = together ? 2 * page_bytes : page_bytes;
	int64_t plane = (SLOTS / page - 1) * stride + page_bytes, layer = stride * (SLOTS / page), all = layer * LAYERS * (together ? 1 : 2);
	uint64_t k[LAYERS], v[LAYERS];
	int64_t slots[TOKENS];
	for (int l = 0; l < LAYERS; l++) {
		k[l] = cache + (uint64_t)(l * layer);
		v[l] = together ? k[l] + (uint64_t)page_bytes : cache + (uint64_t)((LAYERS + l) * layer);
	}
	for (int t = 0; t < TOKENS; t++)
		slots[t] = (t * 7 + 3) % SLOTS; /* scattered, none twice */
	slots[6] = -1;
	memset(host, 0xEE, all);
	must(cuMemcpyHtoDAsync(cache, host, all, mine), "clear the cache");
	must(cuStreamSynchronize(mine), "sync");

	/* The engine's stream is held up; what is queued now goes behind that. */
	opened++;
	must(cuStreamWaitValue64(mine, (CUdeviceptr)(uintptr_t)gate, opened, 0), "wait for the gate");
	skep_paged dest = {order, SKEP_CUDA, LAYERS, page, stride, plane, k, v, slots};
	uint32_t arrived = 0;
	if (way == TWO_POINTERS) { /* whose engine claims nothing */
		skep_cost cost = {0, 1000000, 0, 0};
		skep_restoring r = 0;
		uint8_t states[BLOCKS] = {0};
		uint32_t waiting = BLOCKS;
		must(skep_restore_begin(s, scope, keys, BLOCKS, 0, BLOCKS, &dest, (skep_stream)(uintptr_t)mine, &cost, NULL, 0, &r, &err), "begin");
		while (waiting > 0)
			must(skep_restore_poll(r, 1000, states, &waiting, &err), "poll");
		for (int b = 0; b < BLOCKS; b++)
			arrived += states[b] == SKEP_LANDED;
		must(skep_restore_end(r, 0, &err), "end");
	} else if (way == QUEUE) {
		arrived = queued(s, scope, keys, BLOCKS, &dest, (skep_stream)(uintptr_t)mine);
	} else if (way == SOME_LAYERS) {
		for (uint32_t l = 0; l < LAYERS; l += 2)
			must(skep_restore_layers(s, scope, keys, BLOCKS, 0, BLOCKS, l, l + 2 < LAYERS ? l + 2 : LAYERS, &dest,
			                         (skep_stream)(uintptr_t)mine, 0, &arrived, &err), "restore some layers");
	} else {
		must(skep_restore(s, scope, keys, BLOCKS, 0, BLOCKS, &dest, (skep_stream)(uintptr_t)mine, 0, &arrived, &err), "restore");
	}
	check(arrived == BLOCKS, "all blocks arrive");
	must(cuMemcpyDtoDAsync(seen, cache, all, mine), "the engine's own work");

	must(cuMemcpyDtoHAsync(host, cache, all, other), "look meanwhile");
	must(cuStreamSynchronize(other), "sync");
	for (int64_t i = 0; i < all; i++)
		check(host[i] == 0xEE, "nothing is written before the stream gets there");
	__atomic_store_n(gate, opened, __ATOMIC_SEQ_CST);
	must(cuMemcpyDtoHAsync(host, seen, all, mine), "what it saw");
	must(cuStreamSynchronize(mine), "sync");

	int64_t others = all;
	for (int t = 0; t < TOKENS; t++)
		for (int l = 0; l < LAYERS && slots[t] >= 0; l++)
			for (int x = 0; x < 2; x++)
				for (int h = 0; h < HEADS; h++, others -= VECTOR) {
					int64_t in = slots[t] % page, at = (slots[t] / page) * stride;
					at += (order == SKEP_NHD ? in * HEADS + h : h * page + in) * VECTOR;
					uint8_t *got = host + ((x ? v[l] : k[l]) - cache) + at;
					for (int i = 0; i < VECTOR; i++)
						check(got[i] == byte(t, l, x, h, i), "a byte in its slot");
				}
	for (int64_t i = 0; i < all; i++)
		others -= host[i] == 0xEE;
	check(others <= 0, "nothing else is written");
}

int main(int argc, char **argv) {
	char json[4096];
	skep_store s = 0;
	CUdevice device;
	CUcontext context, now;
	check(argc == 2, "the directory is given");
	must(cuInit(0), "init");
	must(cuDeviceGet(&device, 0), "device");
	must(cuDevicePrimaryCtxRetain(&context, device), "context");
	must(cuCtxSetCurrent(context), "current");
	must(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING), "stream");
	must(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "stream");
	must(cuMemAlloc(&cache, WHOLE), "cache");
	must(cuMemAlloc(&seen, WHOLE), "seen");
	must(cuMemHostAlloc((void **)&gate, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE), "gate");
	must(cuMemHostAlloc((void **)&host, MOST, CU_MEMHOSTALLOC_PORTABLE), "host");
	*gate = 0;

	snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 2, \"capacity_bytes\": 268435456}", argv[1]);
	must(skep_open(json, &s, &err), "open");
	skep_scope scope = {0, 0, NULL};
	must(skep_namespace(s, "{\"tenant\": \"t\", \"name\": \"n\", \"model\": \"m\", \"copies\": 1, \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 3,"
		" \"kv_heads\": 2, \"head_dim\": 8, \"element\": 1, \"block_tokens\": 4}}", &scope.namespace_id, &err), "namespace");
	uint8_t keys[BLOCKS][SKEP_KEY], outcomes[BLOCKS], *blocks[BLOCKS];
	for (int i = 0; i < BLOCKS; i++) {
		memset(keys[i], i + 1, SKEP_KEY);
		fill(blocks[i] = malloc(BYTES), i);
	}
	must(skep_put(s, &scope, NULL, 0, keys, BLOCKS, (const void *const *)blocks, BYTES, outcomes, &err), "put");

	int n = 0;
	for (int order = 0; order < 2; order++)
		for (int together = 0; together < 2; together++)
			for (int page = 2; page <= 16; page *= 2, n++)
				restore(s, &scope, keys[0], order, page, together, n % WAYS);
	must(cuCtxGetCurrent(&now), "current");
	check(now == context, "the thread's context is as it was");

	/* Memory that is not there is an error, once; so are slots and addresses that are none. */
	void (*fail_pin)(int, int) = (void (*)(int, int))dlsym(RTLD_DEFAULT, "skep_fake_fail_pin");
	int (*reset)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "skep_fake_reset");
	uint64_t k[LAYERS] = {cache, cache, cache};
	int64_t slots[BLOCK] = {0, 1, 2, 3};
	uint32_t arrived = 9;
	skep_paged dest = {SKEP_NHD, SKEP_CUDA, LAYERS, 16, 1024, 4096, k, k, slots};
	must(skep_close(s, &err), "close");
	must(skep_open(json, &s, &err), "open again");
	if (fail_pin) {
		fail_pin(0, 1);
		check(skep_restore(s, &scope, keys, 1, 0, 1, &dest, (skep_stream)(uintptr_t)mine, 0, &arrived, &err) != 0 && strstr(err.message, "pinned"), "no pinned memory");
	}
	must(skep_restore(s, &scope, keys, 1, 0, 1, &dest, (skep_stream)(uintptr_t)mine, 0, &arrived, &err), "and then there is");
	check(arrived == 1, "it arrives");
	slots[3] = 1 << 20;
	check(skep_restore(s, &scope, keys, 1, 0, 1, &dest, (skep_stream)(uintptr_t)mine, 0, &arrived, &err) == 1 && strstr(err.message, "slot"), "a slot beyond the plane");
	k[1] = 0;
	check(skep_restore(s, &scope, keys, 1, 0, 1, &dest, (skep_stream)(uintptr_t)mine, 0, &arrived, &err) == 1 && strstr(err.message, "NULL"), "no plane");
	must(cuCtxSetCurrent(NULL), "no context");
	k[1] = cache;
	check(skep_restore(s, &scope, keys, 1, 0, 1, &dest, 0, 0, &arrived, &err) == 1 && strstr(err.message, "context"), "the default stream of no context");
	skep_op op = {.size = sizeof op, .what = SKEP_OP_RESTORE, .scope = &scope, .keys = keys, .n = 1, .to = 1, .dest = &dest};
	skep_queue q;
	must(skep_queue_open(s, 1, &q, NULL, &err), "queue");
	check(skep_submit(q, &op, 1, &arrived, &err) == 1 && arrived == 0 && strstr(err.message, "context"), "the same of an operation");
	must(cuCtxSetCurrent(context), "current");

	/* A stream that each thread has for itself is not for what other threads copy. */
	skep_restoring r = 0;
	skep_cost cost = {0, 1000000, 0, 0};
	slots[3] = 3;
	op.stream = 2;
	check(skep_submit(q, &op, 1, &arrived, &err) == 1 && arrived == 0 && strstr(err.message, "cuStreamCreate"), "an operation on it");
	check(skep_restore_begin(s, &scope, keys, 1, 0, 1, &dest, 2, &cost, NULL, 0, &r, &err) == 1 && !r && strstr(err.message, "cuStreamCreate"), "two pointers on it");
	must(skep_close(s, &err), "close");

	must(cuStreamDestroy(mine), "free");
	must(cuStreamDestroy(other), "free");
	must(cuMemFree(cache), "free");
	must(cuMemFree(seen), "free");
	must(cuMemFreeHost(gate), "free");
	must(cuMemFreeHost(host), "free");
	must(cuDevicePrimaryCtxRelease(device), "release");
	check(!reset || reset() == 0, "nothing is left: no pinned memory, no event");
	printf("%d caches filled\n", n);
	return 0;
}
