/* An engine on a GPU whose restores are larger than a piece of the pinned memory they land in: 72 blocks
 * of 1 MiB, three pieces, two of them whole. Behind a stream that is held up, in mid-copy when a
 * copy is refused, and with more on its way than may be. With a second argument the device fails in
 * mid-copy, which nothing of the process's recovers from. */
#define _GNU_SOURCE
#include <cuda.h>

#include "skep.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, HEADS = 8, DIM = 128, BLOCK = 32, BLOCKS = 72, SLICE = HEADS * BLOCK * DIM * 2, BYTES = LAYERS * 2 * SLICE, TOKENS = BLOCKS * BLOCK };
enum { PAGES = 80, PLANES = 2 * LAYERS, RUNS = PLANES, PIECE = (32 << 20) / BYTES, DEADLINE = 16, FAILED = 20, NO_MEMORY = 23 };
static const int64_t ALL = (int64_t)PAGES * PLANES * SLICE;

static skep_error err;
static skep_store store;
static skep_scope scope;
static uint8_t keys[BLOCKS][SKEP_KEY];
static CUstream mine, other;
static CUdeviceptr cache, seen;
static uint64_t *gate, opened; /* pinned: the stream waits for it */
static uint8_t *host;          /* pinned */
static void (*fail_copy)(int, int, int);
static void (*fail_events)(int, int);

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

/* word is what 8 bytes of a plane of a block are. */
static uint64_t word(int block, int plane, int i) { return ((uint64_t)(block * PLANES + plane) * (SLICE / 8) + i) * 0x9E3779B97F4A7C15ull + 1; }

static void fill(uint64_t *to, int block) {
	for (int plane = 0; plane < PLANES; plane++)
		for (int i = 0; i < SLICE / 8; i++)
			*to++ = word(block, plane, i);
}

static int page_of(int block) { return (block * 29 + 5) % PAGES; } /* scattered, none twice */

/* restore has blocks [from, to) go to their pages. Apart, planes lie one after the other; together, K and
 * V of a layer lie beside each other. */
static int restore(int from, int to, int together, int64_t timeout_ms, uint32_t *arrived) {
	static int64_t slots[TOKENS];
	uint64_t k[LAYERS], v[LAYERS];
	for (int l = 0; l < LAYERS; l++) {
		k[l] = cache + (uint64_t)l * 2 * PAGES * SLICE;
		v[l] = k[l] + (uint64_t)(together ? 1 : PAGES) * SLICE;
	}
	for (int b = from; b < to; b++)
		for (int t = 0; t < BLOCK; t++)
			slots[(b - from) * BLOCK + t] = (int64_t)page_of(b) * BLOCK + t;
	int64_t stride = together ? 2 * SLICE : SLICE;
	skep_paged dest = {SKEP_HND, SKEP_CUDA, LAYERS, BLOCK, stride, (PAGES - 1) * stride + SLICE, k, v, slots};
	return skep_restore(store, &scope, keys, BLOCKS, from, to, &dest, (skep_stream)(uintptr_t)mine, timeout_ms, arrived, &err);
}

static void clear(void) {
	memset(host, 0xEE, ALL);
	must(cuMemcpyHtoDAsync(cache, host, ALL, mine), "clear");
	must(cuStreamSynchronize(mine), "sync");
}

static void hold(void) { must(cuStreamWaitValue64(mine, (CUdeviceptr)(uintptr_t)gate, ++opened, 0), "wait for the gate"); }

static void go_on(void) {
	__atomic_store_n(gate, opened, __ATOMIC_SEQ_CST);
	must(cuStreamSynchronize(mine), "sync");
}

/* untouched sees that nothing is written yet. */
static void untouched(void) {
	must(cuMemcpyDtoHAsync(host, cache, ALL, other), "look meanwhile");
	must(cuStreamSynchronize(other), "sync");
	for (int64_t i = 0; i < ALL; i++)
		check(host[i] == 0xEE, "nothing is written before the stream gets there");
}

/* compare sees blocks [0, n) whole in memory at from, and nothing else where rest says so. */
static void compare(CUdeviceptr from, int n, int together, int rest) {
	static char mark[PAGES];
	memset(mark, 0, sizeof mark);
	must(cuMemcpyDtoHAsync(host, from, ALL, mine), "look");
	must(cuStreamSynchronize(mine), "sync");
	for (int b = 0; b < n; b++) {
		mark[page_of(b)] = 1;
		for (int plane = 0; plane < PLANES; plane++) {
			int l = plane / 2, v = plane % 2;
			int64_t page = (int64_t)l * 2 * PAGES + (together ? 2 * page_of(b) + v : v * PAGES + page_of(b));
			uint64_t *got = (uint64_t *)(host + page * SLICE);
			for (int i = 0; i < SLICE / 8; i++)
				check(got[i] == word(b, plane, i), "a word of a block");
		}
	}
	for (int64_t i = 0; rest && i < ALL; i++) {
		int64_t page = i / SLICE % (2 * PAGES);
		page = together ? page / 2 : page % PAGES;
		check(mark[page] || host[i] == 0xEE, "nothing else is written");
	}
}

static void large(int together) {
	uint32_t arrived = 0;
	clear();
	hold();
	must(restore(0, BLOCKS, together, 0, &arrived), "restore");
	check(arrived == BLOCKS, "all blocks arrive");
	must(cuMemcpyDtoDAsync(seen, cache, ALL, mine), "the engine's own work");
	untouched();
	go_on();
	compare(seen, BLOCKS, together, 1);
}

/* more_than_may_be has the same restored again and again behind a stream that does not go on. */
static void more_than_may_be(void) {
	uint32_t arrived = 0;
	int rc = 0, times = 0;
	clear();
	hold();
	while ((rc = restore(0, BLOCKS, 0, 500, &arrived)) == 0)
		check(++times < 4, "256 MiB are the most");
	check(rc == DEADLINE && strstr(err.message, "pinned"), "it waits, and not for ever");
	untouched();
	go_on();
	compare(cache, BLOCKS, 0, 1);
	must(restore(0, BLOCKS, 0, 0, &arrived), "and then goes on");
	check(arrived == BLOCKS, "all blocks arrive");
	must(cuStreamSynchronize(mine), "sync");
}

/* by_two_pointers has a copy refused while blocks are restored by two pointers: who polls is told. */
static void by_two_pointers(void) {
	static int64_t slots[2 * BLOCK];
	uint64_t k[LAYERS], v[LAYERS];
	for (int l = 0; l < LAYERS; l++) {
		k[l] = cache + (uint64_t)l * 2 * PAGES * SLICE;
		v[l] = k[l] + (uint64_t)PAGES * SLICE;
	}
	for (int t = 0; t < 2 * BLOCK; t++)
		slots[t] = t;
	skep_paged dest = {SKEP_HND, SKEP_CUDA, LAYERS, BLOCK, SLICE, (int64_t)PAGES * SLICE, k, v, slots};
	skep_cost cost = {0, 1000000, 0, 0};
	skep_restoring r;
	uint8_t states[2] = {0};
	uint32_t waiting = 2;
	int rc = 0;
	fail_copy(0, 3, 2);
	must(skep_restore_begin(store, &scope, keys, BLOCKS, 0, 2, &dest, (skep_stream)(uintptr_t)mine, &cost, NULL, 0, &r, &err), "begin");
	while (waiting > 0)
		check((rc = skep_restore_poll(r, 1000, states, &waiting, &err)) == 0 || waiting == 0, "no error before all is answered");
	check(rc == NO_MEMORY && (states[0] == SKEP_MISSED || states[1] == SKEP_MISSED), "what ended it");
	must(skep_restore_end(r, 0, &err), "end");
}

/* refused has a copy in the middle of the second piece refused: what arrived before it is there, and
 * the next restore brings the rest. */
static void refused(void) {
	uint32_t arrived = 0;
	clear();
	fail_copy(0, (PIECE + 7) * RUNS + 3, 2);
	check(restore(0, BLOCKS, 0, 0, &arrived) == NO_MEMORY, "a copy is refused");
	check(arrived >= PIECE && arrived <= PIECE + 7, "those before it arrived: drives answer in any order");
	compare(cache, arrived, 0, 0);
	must(restore(0, BLOCKS, 0, 0, &arrived), "and the next time");
	check(arrived == BLOCKS, "all blocks arrive");
	compare(cache, BLOCKS, 0, 1);
	must(restore(PIECE - 1, PIECE + 1, 0, 0, &arrived), "a few beside a border of pieces");
	check(arrived == 2, "both arrive");
	compare(cache, BLOCKS, 0, 1);
}

/* no_events has the driver make none: nothing is copied, and what was pinned for that is not lost. */
static void no_events(void) {
	uint32_t arrived = 0;
	fail_events(0, 2);
	for (int i = 0; i < 9; i++) /* pieces of more than may be on its way */
		check(restore(0, BLOCKS, 0, 500, &arrived) == NO_MEMORY && arrived == 0, "no event");
	fail_events(0, 0);
	must(restore(0, BLOCKS, 0, 500, &arrived), "and the next time");
	check(arrived == BLOCKS, "all blocks arrive");
}

int main(int argc, char **argv) {
	char json[4096];
	CUdevice device;
	CUcontext context;
	check(argc >= 2, "the directory is given");
	fail_copy = (void (*)(int, int, int))dlsym(RTLD_DEFAULT, "skep_fake_fail_copy");
	fail_events = (void (*)(int, int))dlsym(RTLD_DEFAULT, "skep_fake_fail_events");
	int (*reset)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "skep_fake_reset");
	must(cuInit(0), "init");
	must(cuDeviceGet(&device, 0), "device");
	must(cuDevicePrimaryCtxRetain(&context, device), "context");
	must(cuCtxSetCurrent(context), "current");
	must(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING), "stream");
	must(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "stream");
	must(cuMemAlloc(&cache, ALL), "cache");
	must(cuMemAlloc(&seen, ALL), "seen");
	must(cuMemHostAlloc((void **)&gate, 4096, 3), "gate");
	must(cuMemHostAlloc((void **)&host, ALL, 1), "host");
	*gate = 0;

	snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 2, \"capacity_bytes\": 268435456}", argv[1]);
	must(skep_open(json, &store, &err), "open");
	must(skep_namespace(store, "{\"tenant\": \"t\", \"name\": \"n\", \"model\": \"m\", \"copies\": 1, \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 8,"
		" \"kv_heads\": 8, \"head_dim\": 128, \"element\": 1, \"block_tokens\": 32}}", &scope.namespace_id, &err), "namespace");
	uint64_t *block = malloc(BYTES);
	for (int i = 0; i < BLOCKS; i++) {
		const void *blocks[1] = {block};
		uint8_t outcome;
		memset(keys[i], i + 1, SKEP_KEY);
		fill(block, i);
		must(skep_put(store, &scope, i ? keys[i - 1] : NULL, i, keys[i], 1, blocks, BYTES, &outcome, &err), "put");
		check(outcome == 1 || outcome == 2, "stored");
	}
	if (argc > 2 && fail_copy) {
		uint32_t arrived = 0;
		clear();
		fail_copy(0, (PIECE + 7) * RUNS + 3, 719);
		check(restore(0, BLOCKS, 0, 0, &arrived) == FAILED && arrived <= PIECE + 7, "the device fails");
		check(restore(0, 1, 0, 0, &arrived) == FAILED, "and stays so");
		check(skep_close(store, &err) == FAILED, "closing says so");
		check(skep_close(store, &err) == 1, "and is done");
		printf("failed in mid-copy\n");
		return 0;
	}
	if (fail_events)
		no_events();
	large(0);
	large(1);
	more_than_may_be();
	if (fail_copy) {
		refused();
		by_two_pointers();
	}
	must(skep_close(store, &err), "close");
	must(cuStreamDestroy(mine), "free");
	must(cuStreamDestroy(other), "free");
	must(cuMemFree(cache), "free");
	must(cuMemFree(seen), "free");
	must(cuMemFreeHost(gate), "free");
	must(cuMemFreeHost(host), "free");
	must(cuDevicePrimaryCtxRelease(device), "release");
	check(!reset || reset() == 0, "nothing is left: no pinned memory, no event");
	printf("%d MiB in %d pieces\n", BLOCKS * (BYTES >> 20), (BLOCKS + PIECE - 1) / PIECE);
	return 0;
}
