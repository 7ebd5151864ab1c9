/* An engine with two GPUs, one of which is lost while restores into it are under way: restores into the
 * other one go on, and what the lost one will never give back is not held against them. On the fake
 * driver, which can be told to fail. With "full" as the second argument as much pinned memory as may be is
 * on its way to the lost one. */
#define _GNU_SOURCE
#include <cuda.h>

#include "skep.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, HEADS = 8, DIM = 128, BLOCK = 32, BLOCKS = 32, SLICE = HEADS * BLOCK * DIM * 2, BYTES = LAYERS * 2 * SLICE, TOKENS = BLOCKS * BLOCK };
enum { FAILED = 20, MOST = (256 << 20) / (BLOCKS * BYTES) };
static const int64_t ALL = (int64_t)BLOCKS * BYTES;

static skep_error err;
static skep_store store;
static skep_scope scope;
static uint8_t keys[BLOCKS][SKEP_KEY];

static struct gpu {
	CUcontext context;
	CUstream stream;
	CUdeviceptr cache;
} gpus[2];

static void check(int ok, const char *what) {
	if (!ok) {
		fprintf(stderr, "wrong: %s (%d %s)\n", what, err.code, err.message);
		exit(1);
	}
}

static uint64_t word(int block, int i) { return ((uint64_t)block * (BYTES / 8) + i) * 0x9E3779B97F4A7C15ull + 1; }

/* restore has all blocks go to a GPU's cache: planes of K and V one after the other. */
static int restore(struct gpu *g, uint32_t *arrived) {
	static int64_t slots[TOKENS];
	uint64_t k[LAYERS], v[LAYERS];
	for (int l = 0; l < LAYERS; l++) {
		k[l] = g->cache + (uint64_t)2 * l * BLOCKS * SLICE;
		v[l] = k[l] + (uint64_t)BLOCKS * SLICE;
	}
	for (int t = 0; t < TOKENS; t++)
		slots[t] = t;
	skep_paged dest = {SKEP_HND, SKEP_CUDA, LAYERS, BLOCK, SLICE, (int64_t)BLOCKS * SLICE, k, v, slots};
	return skep_restore(store, &scope, keys, BLOCKS, 0, BLOCKS, &dest, (skep_stream)(uintptr_t)g->stream, 5000, arrived, &err);
}

static void compare(struct gpu *g, uint8_t *host) {
	check(cuCtxSetCurrent(g->context) == 0, "current");
	check(cuMemcpyDtoHAsync(host, g->cache, ALL, g->stream) == 0 && cuStreamSynchronize(g->stream) == 0, "look");
	for (int b = 0; b < BLOCKS; b++)
		for (int plane = 0; plane < 2 * LAYERS; plane++)
			for (int i = 0; i < SLICE / 8; i++)
				check(((uint64_t *)(host + ((int64_t)plane * BLOCKS + b) * SLICE))[i] == word(b, plane * (SLICE / 8) + i), "a word of a block");
}

int main(int argc, char **argv) {
	char json[4096];
	uint32_t arrived = 0;
	uint64_t *gate;
	uint8_t *host;
	void (*fail)(int, int) = (void (*)(int, int))dlsym(RTLD_DEFAULT, "skep_fake_fail");
	int full = argc > 2 && strcmp(argv[2], "full") == 0;
	check(argc >= 2 && fail, "a directory, and the fake driver");
	check(cuInit(0) == 0, "init");
	for (int i = 0; i < 2; i++) {
		CUdevice device;
		check(cuDeviceGet(&device, i) == 0 && cuDevicePrimaryCtxRetain(&gpus[i].context, device) == 0 && cuCtxSetCurrent(gpus[i].context) == 0, "context");
		check(cuStreamCreate(&gpus[i].stream, CU_STREAM_NON_BLOCKING) == 0 && cuMemAlloc(&gpus[i].cache, ALL) == 0, "stream and cache");
	}
	check(cuMemHostAlloc((void **)&gate, 4096, 3) == 0 && cuMemHostAlloc((void **)&host, ALL, 1) == 0, "pinned");
	*gate = 0;

	snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 2, \"capacity_bytes\": 134217728}", argv[1]);
	check(skep_open(json, &store, &err) == 0, "open");
	check(skep_namespace(store, "{\"tenant\": \"t\", \"name\": \"n\", \"model\": \"m\", \"copies\": 1, \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 8,"
		" \"kv_heads\": 8, \"head_dim\": 128, \"element\": 1, \"block_tokens\": 32}}", &scope.namespace_id, &err) == 0, "namespace");
	uint64_t *block = malloc(BYTES);
	for (int b = 0; b < BLOCKS; b++) {
		const void *blocks[1] = {block};
		uint8_t outcome;
		memset(keys[b], b + 1, SKEP_KEY);
		for (int i = 0; i < BYTES / 8; i++)
			block[i] = word(b, i);
		check(skep_put(store, &scope, b ? keys[b - 1] : NULL, b, keys[b], 1, blocks, BYTES, &outcome, &err) == 0 && (outcome == 1 || outcome == 2), "put");
	}

	check(cuCtxSetCurrent(gpus[0].context) == 0 && cuStreamWaitValue64(gpus[0].stream, (CUdeviceptr)(uintptr_t)gate, 1, 0) == 0, "held up");
	for (int i = 0; i < (full ? MOST : 1); i++)
		check(restore(&gpus[0], &arrived) == 0 && arrived == BLOCKS, "restore behind a stream that is held up");
	fail(0, 719);
	for (int i = 0; i < 3; i++) {
		check(restore(&gpus[1], &arrived) == 0 && arrived == BLOCKS, "restore into the other GPU");
		compare(&gpus[1], host);
	}
	check(restore(&gpus[0], &arrived) == FAILED, "restore into the one that is lost");
	check(restore(&gpus[1], &arrived) == 0 && arrived == BLOCKS, "and into the other again");
	compare(&gpus[1], host);
	check(skep_close(store, &err) == FAILED, "closing says that something was lost");
	printf("%s\n", full ? "lost with all on its way" : "one lost, the other goes on");
	return 0;
}
