/* Operations about blocks in pieces, about paged caches, layers and blocks of parts, of a store in this process or, with a
 * token, of a server. Every byte is compared, also those around each piece. */
#define _GNU_SOURCE
#include "skep.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS = 6, LENGTH = 20000, DEPTH = 4, INVALID = 1, CONFLICT = 17, EDGE = 0xEE, BEFORE_10 = offsetof(skep_op, pieces) };

static skep_error err;
static skep_store store;
static skep_scope scope;
static skep_queue queue;
static int fd;
static uint8_t keys[BLOCKS + 1][SKEP_KEY], data[BLOCKS][LENGTH], results[BLOCKS + 1], reasons[BLOCKS + 1];

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

static skep_done await(void) {
	struct pollfd p = {.fd = fd, .events = POLLIN};
	skep_done done;
	uint32_t got = 0;
	while (!got) {
		if (poll(&p, 1, 60000) < 1 && errno != EINTR)
			check(0, "nothing came");
		must(skep_drain(queue, &done, 1, &got, &err), "drain");
	}
	return done;
}

/* did does an operation. */
static skep_done did(const skep_op *op) {
	uint32_t taken;
	must(skep_submit(queue, op, 1, &taken, &err), "submit");
	check(taken == 1, "there is room");
	skep_done done = await();
	check(done.what == op->what && done.tag == op->tag, "the operation");
	return done;
}

static void refused(const skep_op *op, const char *field, const char *limit) {
	uint32_t taken = 9;
	check(skep_submit(queue, op, 1, &taken, &err) == INVALID && taken == 0, field);
	check(strstr(err.message, field) && strstr(err.message, limit), field);
}

static skep_op about(uint32_t what, int first, uint32_t n) {
	skep_op op = {.size = sizeof op, .what = what, .tag = 40 + what, .scope = &scope, .keys = keys[first], .n = n, .timeout_ms = 60000,
		.results = results, .reasons = reasons};
	memset(results, 99, sizeof results);
	return op;
}

/* Pieces of one block after the other, of drawn lengths, each with an edge around it. */
typedef struct {
	uint8_t *memory;
	void *at[2000];
	int64_t lengths[2000];
	uint32_t counts[BLOCKS + 1], all;
} pieces;

static unsigned drawn = 7;

static unsigned draw(unsigned n) {
	drawn = drawn * 1103515245 + 12345;
	return (drawn >> 8) % n;
}

static void cut(pieces *p, uint32_t n, int64_t length) {
	uint8_t *to = p->memory = malloc(n * (size_t)length * 2 + 3000 * n);
	memset(to, EDGE, n * (size_t)length * 2 + 3000 * n);
	p->all = 0;
	for (uint32_t i = 0; i < n; i++) {
		p->counts[i] = 0;
		for (int64_t left = length; left > 0; p->counts[i]++, p->all++) {
			int64_t some = 1 + draw(i == 2 ? (unsigned)length : 900); /* the third is in few */
			if (some > left)
				some = left;
			to += draw(4) ? 1 + draw(60) : 0; /* some touch */
			p->at[p->all] = to, p->lengths[p->all] = some;
			to += some, left -= some;
		}
		to++;
	}
}

/* spread copies a block to its pieces, or says whether it is there (to 0); gaps says that nothing is besides it. */
static int spread(pieces *p, uint32_t block, const uint8_t *from, int to) {
	uint32_t at = 0;
	for (uint32_t i = 0; i < block; i++)
		at += p->counts[i];
	for (uint32_t k = 0; k < p->counts[block]; k++, at++) {
		if (to)
			memcpy(p->at[at], from, (size_t)p->lengths[at]);
		else if (memcmp(p->at[at], from, (size_t)p->lengths[at]))
			return 0;
		from += p->lengths[at];
	}
	return 1;
}

static void gaps(pieces *p) {
	uint8_t *end = p->memory;
	for (uint32_t k = 0; k < p->all; k++) {
		for (; end < (uint8_t *)p->at[k]; end++)
			check(*end == EDGE, "a byte between two pieces");
		end += p->lengths[k];
	}
	check(*end == EDGE, "a byte behind the last");
}

static void in(skep_op *op, pieces *p) { op->blocks = p->at, op->lengths = p->lengths, op->pieces = p->counts; }

static void in_pieces(void) {
	static pieces from, to;
	static uint8_t into[BLOCKS][LENGTH];
	void *whole[BLOCKS];
	int64_t lengths[BLOCKS];
	skep_done done;
	cut(&from, BLOCKS, LENGTH), cut(&to, BLOCKS + 1, LENGTH);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		spread(&from, i, data[i], 1);
		whole[i] = into[i], lengths[i] = LENGTH;
	}
	skep_op save = about(SKEP_OP_SAVE, 0, BLOCKS);
	in(&save, &from);
	done = did(&save);
	check(done.code == 0 && done.blocks == BLOCKS && results[2] == 1, "blocks are stored from pieces");
	skep_op load = about(SKEP_OP_LOAD, 0, BLOCKS);
	load.blocks = whole, load.lengths = lengths;
	done = did(&load);
	check(done.code == 0 && done.blocks == BLOCKS && !memcmp(into, data, sizeof data), "and are whole");

	/* One in the middle is gone, and the last was never there: their pieces stay as they are. */
	skep_op gone = about(SKEP_OP_DELETE, 3, 1);
	check(did(&gone).blocks == 1, "one is deleted");
	load = about(SKEP_OP_LOAD, 0, BLOCKS + 1);
	in(&load, &to);
	done = did(&load);
	check(done.code == 0 && done.blocks == BLOCKS - 1, "those that are there");
	for (uint32_t i = 0; i < BLOCKS; i++)
		check((results[i] == 0) == (i != 3) && spread(&to, i, data[i], 0) == (i != 3), "each in its pieces, but for one");
	check(results[BLOCKS] == 21 || results[BLOCKS] == 2, "a miss");
	gaps(&to);

	/* A byte too many or too few, in one piece of one block. */
	for (int more = -1; more < 2; more += 2) {
		uint8_t room[LENGTH + 1];
		to.at[0] = room, to.lengths[0] += more;
		load = about(SKEP_OP_LOAD, 0, 2);
		in(&load, &to);
		done = did(&load);
		check(done.code == 0 && results[0] == CONFLICT && results[1] == 0, "a block of another length");
		to.lengths[0] -= more;
	}

	load = about(SKEP_OP_LOAD, 0, 2);
	in(&load, &to);
	uint32_t counts[2] = {1, 0};
	load.pieces = counts;
	refused(&load, "pieces of block 1", "1 or more");
	counts[1] = 1u << 20;
	refused(&load, "pieces of blocks is 1048577", "1 to 1048576");
	counts[0] = 0, counts[1] = 0;
	refused(&load, "pieces of blocks", "1 to");
	counts[0] = 1, counts[1] = 2;
	to.lengths[2] = 0;
	refused(&load, "bytes of piece 1 of block 1", "1 to");
	to.lengths[2] = 1, to.at[2] = 0;
	refused(&load, "bytes of piece 1 of block 1", "an address");
	counts[0] = 0;
	load.what = SKEP_OP_SAVE;
	refused(&load, "pieces of block 0", "1 or more");
	load.what = SKEP_OP_LOAD, load.blocks = 0;
	refused(&load, "blocks", "addresses and lengths");
	free(from.memory), free(to.memory);
}

/* More than a queue takes, and one that is closed with loads under way: afterwards nobody writes to their memory. */
static void closed_under_way(void) {
	size_t size = (size_t)BLOCKS * LENGTH;
	uint8_t *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *at[2 * BLOCKS];
	int64_t lengths[2 * BLOCKS];
	uint32_t two = 2, taken, begun = 0;
	skep_op ops[BLOCKS];
	skep_queue q;
	for (int i = 0; i < BLOCKS; i++) {
		at[2 * i] = memory + i * LENGTH + 5, at[2 * i + 1] = memory + i * LENGTH;
		lengths[2 * i] = LENGTH - 5, lengths[2 * i + 1] = 5;
		ops[i] = about(SKEP_OP_LOAD, i, 1);
		ops[i].blocks = at + 2 * i, ops[i].lengths = lengths + 2 * i, ops[i].pieces = &two, ops[i].results = results + i;
	}
	must(skep_queue_open(store, DEPTH, &q, 0, &err), "queue");
	must(skep_submit(q, ops, BLOCKS, &taken, &err), "submit");
	check(taken == DEPTH, "as many as the depth");
	must(skep_submit(q, ops, BLOCKS, &begun, &err), "submit");
	check(begun == 0, "it is full");
	must(skep_queue_close(q, 0, &err), "close");
	munmap(memory, size);
}

/* Operations as of version 9 lie one behind the other, and the page behind them is none. */
static void of_version_9(void) {
	uint8_t *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t taken;
	skep_done done;
	int seen = 0;
	check(BEFORE_10 == 120 && mprotect(page + 4096, 4096, PROT_NONE) == 0, "a page of none");
	uint8_t *at = page + 4096 - 2 * BEFORE_10;
	for (int i = 0; i < 2; i++) {
		skep_op op = about(SKEP_OP_EXISTS, i, 1);
		op.size = BEFORE_10, op.tag = (uint64_t)i, op.results = results + i;
		memcpy(at + i * BEFORE_10, &op, BEFORE_10);
	}
	must(skep_submit(queue, (void *)at, 2, &taken, &err), "submit");
	check(taken == 2, "both are taken");
	for (int i = 0; i < 2; i++) {
		done = await();
		check(done.code == 0, "an operation of version 9");
		seen |= 1 << done.tag;
	}
	check(seen == 3 && results[0] && results[1], "what each says");
	uint32_t wrong[] = {0, BEFORE_10 - 8, BEFORE_10 + 8, sizeof(skep_op) - 4, sizeof(skep_op) + 8};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		skep_op op = about(SKEP_OP_EXISTS, 0, 1);
		char said[80];
		op.size = wrong[i];
		snprintf(said, sizeof said, "size of an operation is %u,", wrong[i]);
		refused(&op, said, "184, or 120");
	}
	munmap(page, 8192);
}

enum { LAYERS = 3, HEADS = 2, DIM = 8, TOKENS = 4, CHAIN = 5, BYTES = LAYERS * 2 * HEADS * TOKENS * DIM * 2, PAGE = 2, PAGES = 16 };

/* A paged cache is filled by the operation as it is by the function. */
static void paged(void) {
	enum { PLANE = PAGES * PAGE * HEADS * DIM * 2 };
	static uint8_t caches[2][2 * LAYERS][PLANE], blocks[CHAIN][BYTES];
	uint8_t chain[CHAIN + 1][SKEP_KEY], outcomes[CHAIN];
	const void *at[CHAIN];
	int64_t slots[CHAIN * TOKENS];
	uint64_t k[LAYERS], v[LAYERS];
	uint32_t arrived, taken;
	skep_scope attention = {0};
	must(skep_namespace(store, "{\"name\": \"kv\", \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 3, \"kv_heads\": 2, \"head_dim\": 8, "
		"\"element\": 1, \"block_tokens\": 4, \"order\": 0}}", &attention.namespace_id, &err), "namespace");
	for (int i = 0; i < CHAIN; i++) {
		at[i] = blocks[i];
		for (int b = 0; b < BYTES; b++)
			blocks[i][b] = (uint8_t)(1 + draw(200));
	}
	for (int i = 0; i <= CHAIN; i++)
		memset(chain[i], 0x50 + i, SKEP_KEY);
	must(skep_put(store, &attention, 0, 0, chain, CHAIN, at, BYTES, outcomes, &err), "put");
	memset(caches, EDGE, sizeof caches);
	for (int t = 0; t < CHAIN * TOKENS; t++)
		slots[t] = t * 7 % (PAGES * PAGE); /* every token elsewhere */
	skep_paged dest = {.order = SKEP_NHD, .where = SKEP_HOST, .layers = LAYERS, .page_tokens = PAGE, .page_stride = PLANE / PAGES,
		.plane_bytes = PLANE, .k = k, .v = v, .slots = slots};
	for (int c = 0; c < 2; c++) {
		for (int l = 0; l < LAYERS; l++)
			k[l] = (uint64_t)(uintptr_t)caches[c][l], v[l] = (uint64_t)(uintptr_t)caches[c][LAYERS + l];
		if (c == 0) {
			must(skep_restore(store, &attention, chain, CHAIN + 1, 1, CHAIN + 1, &dest, 0, 60000, &arrived, &err), "restore");
			check(arrived == CHAIN - 1, "all but the last, which is not stored");
			continue;
		}
		skep_op op = {.size = sizeof op, .what = SKEP_OP_RESTORE, .tag = 1, .scope = &attention, .keys = chain, .n = CHAIN + 1,
			.from = 1, .to = CHAIN + 1, .dest = &dest};
		must(skep_submit(queue, &op, 1, &taken, &err), "submit");
		skep_done done = await();
		check(done.code == 0 && done.what == SKEP_OP_RESTORE && done.blocks == CHAIN - 1, "the same blocks");
		check(!memcmp(caches[0], caches[1], sizeof caches[0]), "the same bytes");
		op.from = CHAIN + 1;
		refused(&op, "blocks", "in 0 to 6");
		op.from = 1, op.dest = 0;
		refused(&op, "where the result goes", "an address");
		dest.layers++;
		op.dest = &dest;
		must(skep_submit(queue, &op, 1, &taken, &err), "submit");
		done = await();
		check(done.code == INVALID && strstr(done.message, "planes of layers"), "a cache of another shape");
	}
}

/* Some layers come to where they are in their block, in one piece or in several, and nothing else is written to. */
static void of_layers(void) {
	enum { LAYER = BYTES / LAYERS, PART = 700 };
	static uint8_t blocks[2][BYTES], into[2][BYTES], want[2][BYTES];
	const void *from[] = {blocks[0], blocks[1]};
	void *whole[] = {into[0], into[1]}, *cut[] = {into[0], into[0] + PART, into[1], into[1] + PART};
	int64_t lengths[] = {BYTES, BYTES}, cuts[] = {PART, BYTES - PART, PART, BYTES - PART};
	uint32_t two[] = {2, 2};
	uint8_t outcomes[2];
	skep_scope attention = {0};
	skep_done done;
	must(skep_namespace(store, "{\"name\": \"layers\", \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 3, \"kv_heads\": 2, "
		"\"head_dim\": 8, \"element\": 1, \"block_tokens\": 4, \"order\": 0}}", &attention.namespace_id, &err), "namespace");
	for (int b = 0; b < BYTES; b++)
		blocks[0][b] = (uint8_t)(1 + draw(200)), blocks[1][b] = (uint8_t)(1 + draw(200));
	must(skep_put(store, &attention, 0, 0, keys, 2, from, BYTES, outcomes, &err), "put");
	skep_op load = about(SKEP_OP_LOAD, 0, 2);
	load.scope = &attention;
	for (uint32_t to = 0; to <= LAYERS; to++) {
		for (uint32_t first = 0; first < to || to == 0; first++) {
			for (int pieces = 0; pieces < 2; pieces++) {
				load.from = first, load.to = to;
				load.blocks = pieces ? cut : whole, load.lengths = pieces ? cuts : lengths, load.pieces = pieces ? two : 0;
				memset(into, EDGE, sizeof into), memset(want, EDGE, sizeof want);
				for (int i = 0; i < 2; i++) /* 0 to 0 is all of them */
					memcpy(want[i] + first * LAYER, blocks[i] + first * LAYER, (to ? to - first : LAYERS) * LAYER);
				done = did(&load);
				check(done.code == 0 && done.blocks == 2 && !memcmp(into, want, sizeof want), "some layers, and no others");
			}
			if (to == 0)
				break;
		}
	}
	const uint32_t none[][2] = {{1, 1}, {2, 1}, {0, LAYERS + 1}, {LAYERS, LAYERS + 1}, {0, UINT32_MAX}};
	memset(into, EDGE, sizeof into), memset(want, EDGE, sizeof want);
	for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
		char said[80];
		load.from = none[i][0], load.to = none[i][1];
		snprintf(said, sizeof said, "layers is %u to %u, must be in 0 to 3", load.from, load.to);
		done = did(&load);
		check(done.code == INVALID && strstr(done.message, said) && results[0] == INVALID, said);
	}
	load.from = 0, load.to = 1, load.part = "more";
	done = did(&load);
	check(done.code == INVALID && strstr(done.message, "layers is 0 to 1, must be all"), "a part without layers");
	load.part = 0, load.scope = &scope;
	done = did(&load);
	check(done.code == INVALID && strstr(done.message, "layers is 0 to 1, must be all"), "blocks without layers");
	check(!memcmp(into, want, sizeof want), "nothing is written");
}

/* A block is written part by part, and its parts are loaded. */
static void of_parts(void) {
	enum { KV = 9000, MORE = 500 };
	static uint8_t into[MORE], at[KV];
	const skep_part parts[] = {{"kv", KV}, {"more", MORE}};
	void *from = data[0], *to = into;
	int64_t n = KV - 1000, room = MORE;
	skep_op begin = about(SKEP_OP_BEGIN, BLOCKS, 2);
	begin.parts = parts;
	skep_done done = did(&begin);
	check(done.code == 0 && done.lease, "begun");
	skep_op write = about(SKEP_OP_WRITE, 0, 1);
	write.writer = done.lease, write.part = "kv", write.offset = 1000, write.blocks = &from, write.lengths = &n;
	check(did(&write).code == 0, "a range is written");
	skep_op commit = about(SKEP_OP_COMMIT, 0, 0);
	commit.writer = done.lease;
	done = did(&commit);
	check(done.code == INVALID && done.blocks == 0, "not all is written");
	from = data[1], n = 1000, write.offset = 0;
	check(did(&write).code == 0, "the rest");
	from = data[2], n = MORE, write.part = "more";
	check(did(&write).code == 0, "the other part");
	write.part = "";
	refused(&write, "name of the part", "1 to 64");
	write.part = "more", write.n = 2;
	refused(&write, "places of a write is 2", "1, and no pieces");
	write.n = 1, n = 0;
	refused(&write, "bytes of block 0", "1 to");
	commit.tag = 5;
	done = did(&commit);
	check(done.code == 0 && done.blocks == 1 && results[0] == 1, "stored");
	refused(&commit, "writer", "one that was begun");

	skep_op load = about(SKEP_OP_LOAD, BLOCKS, 1);
	load.part = "more", load.blocks = &to, load.lengths = &room;
	done = did(&load);
	check(done.code == 0 && done.blocks == 1 && !memcmp(into, data[2], MORE), "a part");
	void *pieces[] = {at + 4000, at};
	int64_t lengths[] = {KV - 4000, 4000};
	uint32_t two = 2;
	load = about(SKEP_OP_LOAD, BLOCKS, 1);
	load.part = "kv", load.blocks = pieces, load.lengths = lengths, load.pieces = &two;
	done = did(&load);
	check(done.code == 0 && done.blocks == 1, "a part in pieces");
	check(!memcmp(at + 4000, data[1], 1000) && !memcmp(at + 5000, data[0], KV - 5000) && !memcmp(at, data[0] + KV - 5000, 4000), "its bytes");
	load.part = "none";
	done = did(&load);
	check(done.code == 0 && done.blocks == 0 && results[0] != 0, "a part that no block has");
	load.part = "";
	refused(&load, "name of the part", "1 to 64");

	memset(keys[BLOCKS], 0x77, SKEP_KEY);
	begin.keys = keys[BLOCKS], begin.lease_ms = 60000;
	done = did(&begin);
	check(done.code == 0, "begun");
	skep_op drop = about(SKEP_OP_ABORT, 0, 0);
	drop.writer = done.lease;
	skep_queue other = queue;
	int other_fd = fd;
	must(skep_queue_open(store, 1, &queue, &fd, &err), "a queue of one");
	skep_op first = about(SKEP_OP_FLUSH, 0, 0);
	uint32_t taken;
	must(skep_submit(queue, &first, 1, &taken, &err), "submit");
	check(taken == 1, "there is room");
	must(skep_submit(queue, &drop, 1, &taken, &err), "submit");
	check(taken == 0, "it is full, and the writer goes on");
	check(await().what == SKEP_OP_FLUSH, "flushed");
	check(did(&drop).code == 0, "dropped");
	must(skep_queue_close(queue, 0, &err), "close");
	queue = other, fd = other_fd;
	refused(&drop, "writer", "one that was begun");
	begin.n = 0;
	refused(&begin, "parts is 0", "1 to");
}

int main(int argc, char **argv) {
	char json[4096];
	if (argc > 2)
		snprintf(json, sizeof json, "{\"connect\": \"%s\", \"token\": \"%s\", \"shared_bytes\": 4194304, \"strict\": true}", argv[1], argv[2]);
	else
		snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 1, \"capacity_bytes\": 268435456}", argv[1]);
	must(skep_open(json, &store, &err), "open");
	must(skep_namespace(store, "{\"name\": \"n\", \"shape\": {\"block_tokens\": 1}}", &scope.namespace_id, &err), "namespace");
	for (int i = 0; i <= BLOCKS; i++)
		memset(keys[i], i + 1, SKEP_KEY);
	for (int i = 0; i < BLOCKS; i++)
		for (int k = 0; k < LENGTH; k++)
			data[i][k] = (uint8_t)(i * 31 + k * 7 + (k >> 8));
	must(skep_queue_open(store, DEPTH, &queue, &fd, &err), "queue");
	in_pieces();
	closed_under_way();
	paged();
	of_layers();
	of_parts();
	of_version_9();
	must(skep_queue_close(queue, 0, &err), "close");
	must(skep_close(store, &err), "close");
	puts("every piece, page, layer and part");
	return 0;
}
