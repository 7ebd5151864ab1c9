/* Blocks as a whole, in a store in this process or, with a token, of a server: stored with lengths of their own, found
 * key by key, loaded into memory of the program's and into memory shared with the server, deleted. Beside every place lie
 * bytes that nobody may touch. */
#include "skep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 7, ROOM = 96 << 10, EDGE = 64, MISS = 3, NOT_FOUND = 2, CONFLICT = 17, UNSUPPORTED = 19, EVICTED = 21 };

static skep_error err;
static skep_store store;
static skep_scope scope;
static uint8_t keys[BLOCKS][SKEP_KEY], results[BLOCKS];
static int64_t lengths[BLOCKS];

static void must(int rc, const char *what) {
	if (rc != 0) {
		fprintf(stderr, "%s: %d %s\n", what, rc, err.message);
		exit(1);
	}
}

static void check(int ok, const char *what) {
	if (!ok) {
		fprintf(stderr, "wrong: %s (%d %s)\n", what, (int)err.code, err.message);
		exit(1);
	}
}

static uint8_t byte(int block, int64_t i) { return (uint8_t)(block * 31 + i * 7 + (i >> 8) + 1); }

/* places are rooms of memory with an edge around each. */
static void places(uint8_t *memory, void **at) {
	memset(memory, 0xee, (size_t)BLOCKS * ROOM);
	for (int i = 0; i < BLOCKS; i++)
		at[i] = memory + (size_t)i * ROOM + EDGE;
}

static void compare(const uint8_t *memory, int block, int64_t n) {
	const uint8_t *room = memory + (size_t)block * ROOM;
	for (int64_t i = 0; i < ROOM; i++)
		check(room[i] == (i >= EDGE && i < EDGE + n ? byte(block, i - EDGE) : 0xee), "a byte of a block, or beside it");
}

static int missing(int code) { return code == NOT_FOUND || code == EVICTED; }

/* load has all blocks loaded and looks at each: one was never stored, and two are given places of another size. */
static void load(uint8_t *memory) {
	void *at[BLOCKS];
	int64_t want[BLOCKS];
	places(memory, at);
	memcpy(want, lengths, sizeof want);
	must(skep_load(store, &scope, keys, BLOCKS, 0, at, want, 0, results, &err), "load");
	for (int i = 0; i < BLOCKS; i++) {
		check(i == MISS ? missing(results[i]) : results[i] == 0, "what became of a block");
		if (i != MISS)
			compare(memory, i, want[i]);
	}
	places(memory, at);
	want[1]--, want[5]++;
	must(skep_load(store, &scope, keys, BLOCKS, 0, at, want, 0, results, &err), "load into other places");
	for (int i = 0; i < BLOCKS; i++) {
		check(i == MISS ? missing(results[i]) : results[i] == (i == 1 || i == 5 ? CONFLICT : 0), "what became of a block of another length");
		if (i != MISS && results[i] == 0)
			compare(memory, i, want[i]);
		for (int64_t k = 0; k < ROOM; k++)
			check((k >= EDGE && k < EDGE + want[i]) || memory[(size_t)i * ROOM + k] == 0xee, "a byte beside a block");
	}
}

/* packed loads blocks of one length into places that touch. */
static void packed(uint8_t *memory) {
	enum { N = 4, LENGTH = 8192 };
	static uint8_t names[N][SKEP_KEY];
	const void *from[N];
	void *at[N];
	int64_t each[N];
	for (int i = 0; i < N; i++) {
		memset(names[i], 100 + i, SKEP_KEY);
		from[i] = at[i] = memory + i * LENGTH;
		each[i] = LENGTH;
		for (int k = 0; k < LENGTH; k++)
			memory[i * LENGTH + k] = byte(i, k);
	}
	must(skep_save(store, &scope, 0, 0, names, N, from, each, 0, results, 0, &err), "save packed");
	memset(memory, 0xee, N * LENGTH + EDGE);
	must(skep_load(store, &scope, names, N, 0, at, each, 0, results, &err), "load packed");
	for (int i = 0; i < N * LENGTH + EDGE; i++)
		check(memory[i] == (i < N * LENGTH ? byte(i / LENGTH, i % LENGTH) : 0xee), "a byte of packed blocks");
}

static void chained(void) {
	skep_scope mine = {0, 0, 0};
	uint8_t block[3][4096], tiers[3];
	const void *from[3] = {block[0], block[1], block[2]};
	void *at[1];
	int64_t each[3] = {4096, 4096, 4096};
	must(skep_namespace(store, "{\"name\": \"chain\", \"chained\": true, \"shape\": {\"block_tokens\": 1}}", &mine.namespace_id, &err), "namespace");
	for (int i = 0; i < 3; i++)
		memset(block[i], i + 1, sizeof block[i]);
	must(skep_save(store, &mine, 0, 0, keys, 1, from, each, 0, results, 0, &err), "save the head");
	must(skep_save(store, &mine, keys[0], 1, keys[1], 2, from + 1, each, 0, results, 0, &err), "save behind it");
	must(skep_exists(store, &mine, keys, 3, 0, tiers, &err), "exists");
	check(tiers[0] && tiers[1] && tiers[2], "all of the chain");
	must(skep_exists(store, &mine, keys[2], 1, 0, tiers, &err), "exists");
	check(!tiers[0], "not what has no head");
	must(skep_want(store, &mine, keys[1], 3, 0, 0, tiers, results, &err), "want");
	check(tiers[0] == 3 && tiers[1] == 3 && tiers[2] == SKEP_WANTED, "what is there inside a chain, and what is wanted");
	must(skep_want(store, &scope, keys, 1, 0, 0, tiers, 0, &err), "want");
	check(tiers[0] == SKEP_WANTED, "all is, where the last writer wins");
	check(skep_want(store, &mine, keys, 1, -1, 0, tiers, 0, &err) == 1 && strstr(err.message, "bytes"), "fewer bytes than none");
	check(skep_want(store, &mine, keys, 1, 0, 0, 0, 0, &err) == 1, "answers to nowhere");
	at[0] = block[0];
	must(skep_load(store, &mine, keys[2], 1, 0, at, each, 0, results, &err), "load");
	check(results[0] == 0 && block[0][0] == 3 && block[0][4095] == 3, "a block of a chain by its key alone");
}

int main(int argc, char **argv) {
	char json[4096];
	uint8_t tiers[BLOCKS], reasons[BLOCKS], *memory = malloc((size_t)BLOCKS * ROOM);
	const void *from[BLOCKS - 1];
	uint8_t names[BLOCKS - 1][SKEP_KEY];
	int64_t each[BLOCKS - 1];
	skep_found found;
	uint32_t deleted;
	if (argc > 2)
		snprintf(json, sizeof json, "{\"connect\": \"%s\", \"token\": \"%s\", \"shared_bytes\": 4194304, \"lazy\": true, \"strict\": true}", argv[1], argv[2]);
	else
		snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 1, \"capacity_bytes\": 268435456}", argv[1]);
	must(skep_open(json, &store, &err), "open");
	must(skep_direct(store, 0, &err), "direct");
	must(skep_namespace(store, "{\"name\": \"n\", \"shape\": {\"block_tokens\": 1}}", &scope.namespace_id, &err), "namespace");

	for (int i = 0, n = 0; i < BLOCKS; i++) {
		memset(keys[i], i + 1, SKEP_KEY);
		lengths[i] = i == 2 ? 1 : i == 4 ? 65536 : 5000 + 4096 * i;
		if (i == MISS)
			continue;
		uint8_t *b = malloc(lengths[i]);
		for (int64_t k = 0; k < lengths[i]; k++)
			b[k] = byte(i, k);
		memcpy(names[n], keys[i], SKEP_KEY);
		from[n] = b, each[n++] = lengths[i];
	}
	memset(reasons, 9, sizeof reasons);
	must(skep_save(store, &scope, 0, 0, names, BLOCKS - 1, from, each, 0, results, reasons, &err), "save");
	for (int i = 0; i < BLOCKS - 1; i++)
		check((results[i] == 1 || results[i] == 2) && reasons[i] == 0, "stored");
	must(skep_exists(store, &scope, keys, BLOCKS, 0, tiers, &err), "exists");
	for (int i = 0; i < BLOCKS; i++)
		check(!tiers[i] == (i == MISS), "where a block is");
	load(memory);
	packed(memory);
	if (argc > 2) {
		void *shared;
		int fd;
		int64_t offset;
		must(skep_shared_alloc(store, (int64_t)BLOCKS * ROOM, &shared, &fd, &offset, &err), "shared memory");
		load(shared);
		packed(shared);
		must(skep_shared_free(store, shared, &err), "free");
	}

	must(skep_lookup(store, &scope, keys, BLOCKS, 1000, &found, &err), "lookup");
	check(found.blocks == MISS && found.lease, "a lease of those before the one that is missing");
	must(skep_release(store, found.lease, &err), "release");
	must(skep_lookup_within(store, &scope, keys, BLOCKS, 1000, 60000, &found, &err), "lookup within a minute");
	check(found.blocks == MISS && found.lease, "a lease of those before the one that is missing");
	must(skep_renew(store, found.lease, 2000, &err), "renew");
	must(skep_renew(store, found.lease, 0, &err), "renew for the default");
	must(skep_release(store, found.lease, &err), "release");
	check(skep_renew(store, found.lease, 2000, &err) == 10, "it is over");
	check(skep_renew(store, found.lease, 0, &err) == 10, "for the default");
	check(skep_renew(store, found.lease, -1, &err) == 1, "for how long");
	memset(reasons, 9, sizeof reasons);
	must(skep_lookup_each(store, &scope, keys, BLOCKS, 1000, 60000, reasons, &found.lease, &err), "lookup of each");
	for (int i = 0; i < BLOCKS; i++)
		check(reasons[i] == (i != MISS), "which are found");
	must(skep_renew(store, found.lease, 2000, &err), "renew the lease of those found");
	must(skep_release(store, found.lease, &err), "release it");
	check(skep_renew(store, found.lease, 2000, &err) == 10, "it is over, too");
	must(skep_lookup_each(store, &scope, keys, BLOCKS, -1, 0, reasons, &found.lease, &err), "lookup of each without a lease");
	check(found.lease == 0 && reasons[0] == 1, "no lease is asked for");
	check(skep_lookup_each(store, &scope, keys, BLOCKS, 0, 0, 0, &found.lease, &err) == 1, "found nowhere");
	check(skep_lookup_each(store, &scope, keys, BLOCKS, 0, 0, reasons, 0, &err) == 1, "leased nowhere");
	check(skep_save(store, &scope, 0, 0, names, 1, from, (int64_t[]){0}, 0, results, 0, &err) == 1 && strstr(err.message, "block 0"), "a block of nothing");
	check(skep_load(store, &scope, keys, 1, 0, (void *[]){0}, lengths, 0, results, &err) == 1, "a place that is none");
	scope.namespace_id += 1000;
	check(skep_load(store, &scope, keys, 1, 0, (void *[]){memory}, lengths, 0, results, &err) == NOT_FOUND && results[0] == NOT_FOUND, "another namespace");
	scope.namespace_id -= 1000;
	chained();
	must(skep_delete(store, &scope, keys, 5, 0, &deleted, &err), "delete");
	check(deleted == 4, "those that were there");
	must(skep_exists(store, &scope, keys, BLOCKS, 0, tiers, &err), "exists");
	for (int i = 0; i < BLOCKS; i++)
		check(!tiers[i] == (i < 5), "what is left");
	must(skep_close(store, &err), "close");
	if (argc > 2) {
		snprintf(json, sizeof json, "{\"connect\": \"%s\", \"token\": \"%s\"}", argv[1], argv[2]);
		must(skep_open(json, &store, &err), "open without shared memory");
		check(skep_direct(store, 0, &err) == UNSUPPORTED, "not direct");
		must(skep_close(store, &err), "close");
	}
	puts("every block whole, and none else");
	return 0;
}
