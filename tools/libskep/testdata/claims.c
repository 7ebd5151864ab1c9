/* Engines that restore by two pointers and claim through a word: a scheduler in a process of its own that has no
 * skep in it (claimer.c), and threads that claim by the word and by calls at random. Each block is loaded or
 * granted, never both; what is loaded is compared, and where a block was granted nothing was written.
 *
 *   claims CLAIMER DIRECTORY                  the store embedded, the word in a memfd
 *   claims CLAIMER unix:SOCKET TOKEN          a server's, the word in memory shared with it */
#define _GNU_SOURCE
#include "board.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 8, DIM = 64, UNIT = 16, BLOCKS = 256, TOKENS = BLOCKS * UNIT, ROW = DIM * 2, SLICE = UNIT * ROW, BYTES = LAYERS * 2 * SLICE, ROUNDS = 4, PER = 20 };

static skep_error err;
static skep_store store;
static skep_scope scope;
static uint8_t keys[BLOCKS][SKEP_KEY], cache[2 * LAYERS][TOKENS * ROW];
static int64_t slots[TOKENS];

static void must(int rc, const char *what) {
	if (rc != 0) {
		fprintf(stderr, "%s: %d %s\n", what, rc, err.message);
		exit(1);
	}
}

static void check(int ok, const char *what, int n) {
	if (!ok) {
		fprintf(stderr, "wrong: %s %d\n", what, n);
		exit(1);
	}
}

static uint8_t byte(int token, int plane, int i) { return (uint8_t)(token * 31 + plane * 101 + i * 7 + 1); }

static void put_all(void) {
	static uint8_t bytes[BLOCKS][BYTES];
	const void *blocks[BLOCKS];
	uint8_t outcomes[BLOCKS];
	for (int b = 0; b < BLOCKS; b++) {
		memcpy(keys[b], &b, sizeof b);
		keys[b][31] = 9;
		blocks[b] = bytes[b];
		for (int p = 0; p < 2 * LAYERS; p++)
			for (int t = 0; t < UNIT; t++)
				for (int i = 0; i < ROW; i++)
					bytes[b][p * SLICE + t * ROW + i] = byte(b * UNIT + t, p, i);
	}
	for (int b = 0; b < BLOCKS; b += 64)
		must(skep_put(store, &scope, b ? keys[b - 1] : NULL, (uint32_t)b, keys[b], 64, blocks + b, BYTES, outcomes, &err), "put");
}

static skep_restoring begin(uint64_t *word) {
	static uint64_t k[LAYERS], v[LAYERS];
	for (int l = 0; l < LAYERS; l++) {
		k[l] = (uint64_t)(uintptr_t)cache[2 * l];
		v[l] = (uint64_t)(uintptr_t)cache[2 * l + 1];
	}
	for (int t = 0; t < TOKENS; t++)
		slots[t] = TOKENS - 1 - t;
	memset(cache, 0xEE, sizeof cache);
	skep_paged dest = {SKEP_NHD, SKEP_HOST, LAYERS, UNIT, UNIT * ROW, TOKENS * ROW, k, v, slots};
	skep_cost cost = {0, PER * 1000 / UNIT, 0, 0};
	skep_restoring r = 0;
	must(skep_restore_begin(store, &scope, keys, BLOCKS, 0, BLOCKS, &dest, 0, &cost, word, 60000, &r, &err), "begin");
	memset(k, 0, sizeof k); /* what says where is not kept, but dest's memory */
	memset(slots, 0xff, sizeof slots);
	return r;
}

/* verify holds what landed against what was granted, and says how many blocks landed. */
static int verify(const uint8_t *states, const uint8_t *granted) {
	int loaded = 0;
	for (int b = 0; b < BLOCKS; b++) {
		check((states[b] == SKEP_LANDED) + granted[b] == 1, "a block is loaded or granted, once", b);
		check(states[b] == (granted[b] ? SKEP_GRANTED : SKEP_LANDED), "what a block is said to be", b);
		loaded += states[b] == SKEP_LANDED;
		for (int t = b * UNIT; t < (b + 1) * UNIT; t++)
			for (int p = 0; p < 2 * LAYERS; p++)
				for (int i = 0; i < ROW; i++)
					check(cache[p][(TOKENS - 1 - t) * ROW + i] == (granted[b] ? 0xEE : byte(t, p, i)), "a byte of token", t);
	}
	return loaded;
}

/* other_process has a scheduler elsewhere claim. */
static int other_process(const char *claimer, board *at, int fd, int64_t offset) {
	uint8_t states[BLOCKS] = {0};
	uint32_t waiting = BLOCKS;
	uint64_t told = 0;
	char arg[5][24];
	memset(at, 0, sizeof *at);
	skep_restoring r = begin(&at->word);
	fd = fcntl(fd, F_DUPFD, 3); /* one that exec keeps */
	snprintf(arg[0], 24, "%d", fd), snprintf(arg[1], 24, "%lld", (long long)offset), snprintf(arg[2], 24, "%d", UNIT);
	snprintf(arg[3], 24, "%d", TOKENS), snprintf(arg[4], 24, "%d", PER);
	pid_t child = fork();
	if (child == 0) {
		execl(claimer, claimer, arg[0], arg[1], arg[2], arg[3], arg[4], (char *)NULL);
		_exit(127);
	}
	close(fd);
	while (waiting > 0) {
		must(skep_restore_poll(r, 2, states, &waiting, &err), "poll");
		uint64_t done = __atomic_load_n(&at->computed, __ATOMIC_SEQ_CST);
		if (done > told)
			must(skep_computed(r, (int64_t)told, (int64_t)done, (int64_t)(done - told) * PER * 1000 / UNIT, 0, &err), "computed");
		told = done > told ? done : told;
	}
	__atomic_store_n(&at->over, 1, __ATOMIC_SEQ_CST);
	int status = 0;
	check(waitpid(child, &status, 0) == child && status == 0, "how the other process ended", status);
	must(skep_restore_end(r, 0, &err), "end");
	check(skep_restore_end(r, 0, &err) == 1, "it is over", 0);
	return verify(states, at->granted);
}

typedef struct {
	skep_restoring r;
	skep_word *word;
	unsigned seed;
	uint8_t *granted;
	int64_t *pos;
} thread;

/* claim is one of several that claim what is next, by the word or by a call. */
static void *claim(void *of) {
	thread *x = of;
	for (;;) {
		skep_claimed c;
		skep_error e;
		int64_t pos = __atomic_load_n(x->pos, __ATOMIC_SEQ_CST), to = pos + UNIT * (1 + rand_r(&x->seed) % 4);
		if (pos >= TOKENS)
			return NULL;
		if (to > TOKENS)
			to = TOKENS;
		if (rand_r(&x->seed) % 4 == 0 || !skep_word_claim(x->word, pos, to, 1, &c))
			if (skep_claim(x->r, pos, to, 1, &c, &e) != 0)
				check(0, e.message, e.code);
		for (int64_t i = c.from / UNIT; i < c.to / UNIT; i++)
			__atomic_add_fetch(&x->granted[i], 1, __ATOMIC_SEQ_CST);
		if (c.from == c.to && c.jump == pos)
			usleep(50);
		usleep((useconds_t)((c.to - c.from) / UNIT * PER));
		while (c.jump > pos && !__atomic_compare_exchange_n(x->pos, &pos, c.jump, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			;
	}
}

static int several_threads(uint64_t *at) {
	uint8_t states[BLOCKS] = {0}, granted[BLOCKS] = {0};
	uint32_t waiting = BLOCKS;
	int64_t pos = 0;
	skep_restoring r = begin(at);
	skep_word word = {at, UNIT, TOKENS, 0};
	pthread_t id[3];
	thread x[3];
	for (int i = 0; i < 3; i++) {
		x[i] = (thread){r, &word, (unsigned)i + 7, granted, &pos};
		check(pthread_create(&id[i], NULL, claim, &x[i]) == 0, "thread", i);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(id[i], NULL);
	while (waiting > 0)
		must(skep_restore_poll(r, 1000, states, &waiting, &err), "poll");
	must(skep_restore_end(r, 0, &err), "end");
	return verify(states, granted);
}

int main(int argc, char **argv) {
	char json[4096];
	int server = argc == 4, loaded = 0, fd = -1;
	int64_t offset = 0;
	void *page = NULL;
	check(argc == 3 || server, "arguments", argc);
	if (server)
		snprintf(json, sizeof json, "{\"connect\": \"%s\", \"token\": \"%s\", \"shared_bytes\": 33554432}", argv[2], argv[3]);
	else
		snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 1, \"capacity_bytes\": 268435456, \"dram_bytes\": -1}", argv[2]);
	must(skep_open(json, &store, &err), "open");
	must(skep_namespace(store, "{\"tenant\": \"t\", \"name\": \"claims\", \"model\": \"m\", \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 8,"
		" \"kv_heads\": 1, \"head_dim\": 64, \"element\": 1, \"block_tokens\": 16}}", &scope.namespace_id, &err), "namespace");
	put_all();
	if (server) {
		must(skep_shared_alloc(store, BOARD_BYTES, &page, &fd, &offset, &err), "shared memory");
	} else {
		check(skep_shared_alloc(store, BOARD_BYTES, &page, &fd, &offset, &err) == 19, "an embedded store shares nothing", 0);
		fd = memfd_create("word", MFD_CLOEXEC);
		check(fd >= 0 && ftruncate(fd, BOARD_BYTES) == 0, "memfd", fd);
		page = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	board *at = page;
	uint64_t claims = 0;
	for (int i = 0; i < ROUNDS; i++) {
		loaded += other_process(argv[1], at, fd, offset);
		claims += at->claims;
	}
	check(claims > 0, "claims of the other process", (int)claims);
	fprintf(stderr, "another process: %llu claims, %d of %d blocks loaded\n", (unsigned long long)claims, loaded, ROUNDS * BLOCKS);
	loaded = 0;
	for (int i = 0; i < ROUNDS; i++)
		loaded += several_threads(&at->word);
	fprintf(stderr, "threads: %d of %d blocks loaded\n", loaded, ROUNDS * BLOCKS);
	skep_restoring r = 0;
	skep_cost none = {0, 0, 0, 0}, some = {0, 1, 0, 0};
	skep_paged dest = {SKEP_NHD, SKEP_HOST, LAYERS, UNIT, UNIT * ROW, TOKENS * ROW, (uint64_t[LAYERS]){1}, (uint64_t[LAYERS]){1}, slots};
	check(skep_restore_begin(store, &scope, keys, BLOCKS, 0, BLOCKS, &dest, 0, &none, NULL, 0, &r, &err) == 1 && strstr(err.message, "cost"), "a cost that is none", 0);
	check(skep_restore_begin(store, &scope, keys, BLOCKS, 0, BLOCKS, &dest, 0, &some, (uint64_t *)((char *)page + 4), 0, &r, &err) == 1 && strstr(err.message, "word"), "a word between words", 0);
	if (server)
		must(skep_shared_free(store, page, &err), "free");
	must(skep_close(store, &err), "close");
	puts("every block loaded or granted, once");
	return 0;
}
