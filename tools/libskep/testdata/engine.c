/* An engine in miniature: puts a chain of blocks, finds it, and has it restored into paged
 * caches of every kind, on the host and on the simulated GPU; every byte is compared. */
#include "skep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, HEADS = 2, DIM = 8, BLOCK = 4, BLOCKS = 5, BYTES = LAYERS * 2 * HEADS * BLOCK * DIM * 2, VECTOR = DIM * 2 };

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

/* byte is what is stored for a token of the chain. */
static uint8_t byte(int token, int layer, int v, int head, int i) {
	return (uint8_t)(token * 31 + layer * 101 + v * 57 + head * 13 + i * 3 + 1);
}

/* fill writes a block in the shape's layout: [layer][K, V][head][token][dim]. */
static void fill(uint8_t *to, int block) {
	for (int l = 0; l < LAYERS; l++)
		for (int v = 0; v < 2; v++)
			for (int h = 0; h < HEADS; h++)
				for (int t = 0; t < BLOCK; t++)
					for (int i = 0; i < VECTOR; i++)
						*to++ = byte(block * BLOCK + t, l, v, h, i);
}

static void restore(skep_store s, skep_scope *scope, const uint8_t *keys, int order, int page, int together, int device) {
	enum { TOKENS = BLOCKS * BLOCK };
	int pages = 64 / page;
	int64_t page_bytes = (int64_t)page * HEADS * VECTOR, stride = together ? 2 * page_bytes : page_bytes;
	int64_t plane = (pages - 1) * stride + page_bytes, layer = stride * pages, all = layer * LAYERS * (together ? 1 : 2);
	uint8_t *cache = malloc(all);
	uint64_t base = (uint64_t)(uintptr_t)cache, k[LAYERS], v[LAYERS];
	int64_t slots[TOKENS];
	skep_stream stream = 0;
	memset(cache, 0xEE, all);
	if (device) {
		must(skep_device_alloc(s, all, &base, &err), "alloc");
		must(skep_stream_new(s, &stream, &err), "stream");
	}
	for (int l = 0; l < LAYERS; l++) {
		k[l] = base + (uint64_t)(l * layer);
		v[l] = together ? k[l] + (uint64_t)page_bytes : base + (uint64_t)((LAYERS + l) * layer);
	}
	for (int t = 0; t < TOKENS; t++)
		slots[t] = (t * 7 + 3) % 64; /* scattered, none twice */
	slots[6] = -1;
	skep_paged dest = {order, device ? SKEP_DEVICE : SKEP_HOST, LAYERS, page, stride, plane, k, v, slots};
	uint32_t arrived = 0;
	if (together) { /* layer by layer, of which the others have no planes */
		for (uint32_t l = 0; l < LAYERS; l++) {
			uint64_t k1[LAYERS] = {0}, v1[LAYERS] = {0};
			k1[l] = k[l];
			v1[l] = v[l];
			dest.k = k1;
			dest.v = v1;
			must(skep_restore_layers(s, scope, keys, BLOCKS, 0, BLOCKS, l, l + 1, &dest, stream, 0, &arrived, &err), "a layer");
		}
	} else {
		must(skep_restore(s, scope, keys, BLOCKS, 0, BLOCKS, &dest, stream, 0, &arrived, &err), "restore");
	}
	check(arrived == BLOCKS, "all blocks arrive");
	if (device) {
		must(skep_stream_sync(s, stream, 0, &err), "sync");
		must(skep_device_read(s, base, all, cache, &err), "read");
	}
	for (int t = 0; t < TOKENS; t++)
		for (int l = 0; l < LAYERS && slots[t] >= 0; l++)
			for (int x = 0; x < 2; x++)
				for (int h = 0; h < HEADS; h++) {
					int64_t in = slots[t] % page, at = (slots[t] / page) * stride;
					at += (order == SKEP_NHD ? in * HEADS + h : h * page + in) * VECTOR;
					uint8_t *got = cache + ((x ? v[l] : k[l]) - base) + at;
					for (int i = 0; i < VECTOR; i++)
						check(got[i] == byte(t, l, x, h, i), "a byte in its slot");
				}
	if (device) {
		must(skep_stream_free(s, stream, &err), "free stream");
		must(skep_device_free(s, base, &err), "free");
	}
	free(cache);
}

int main(int argc, char **argv) {
	char json[4096];
	skep_store s = 0;
	check(argc == 2, "the directory is given");
	snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 2, \"capacity_bytes\": 268435456, \"dram_bytes\": 16777216,"
		" \"gpu\": {\"backend\": \"sim\", \"memory_bytes\": 67108864, \"local_blocks\": 2, \"block_bytes\": 65536}}", argv[1]);
	check(skep_open("{}", &s, &err) == 1 && strstr(err.message, "dir"), "a mistake says what it is");
	check(skep_lookup(77, NULL, NULL, 0, 0, NULL, NULL) == 1, "no store of this number");
	must(skep_open(json, &s, &err), "open");

	skep_scope scope = {0, 6, "secret"};
	must(skep_namespace(s, "{\"tenant\": \"t\", \"name\": \"n\", \"model\": \"m\", \"copies\": 1, \"chained\": true, \"shape\": {\"kind\": 1, \"layers\": 3,"
		" \"kv_heads\": 2, \"head_dim\": 8, \"element\": 1, \"block_tokens\": 4}}", &scope.namespace_id, &err), "namespace");
	uint8_t keys[BLOCKS + 1][SKEP_KEY], outcomes[BLOCKS], *blocks[BLOCKS];
	for (int i = 0; i <= BLOCKS; i++)
		memset(keys[i], i + 1, SKEP_KEY);
	for (int i = 0; i < BLOCKS; i++)
		fill(blocks[i] = malloc(BYTES), i);
	must(skep_put(s, &scope, NULL, 0, keys, 2, (const void *const *)blocks, BYTES, outcomes, &err), "put");
	must(skep_put(s, &scope, keys[1], 2, keys[2], BLOCKS - 2, (const void *const *)blocks + 2, BYTES, outcomes + 2, &err), "put the rest");
	for (int i = 0; i < BLOCKS; i++)
		check(outcomes[i] == 1 || outcomes[i] == 2, "stored");

	skep_found found;
	must(skep_lookup(s, &scope, keys, BLOCKS + 1, 0, &found, &err), "lookup");
	check(found.blocks == BLOCKS && found.tokens == BLOCKS * BLOCK && found.lease != 0, "all of it is found and leased");
	must(skep_release(s, found.lease, &err), "release");
	skep_scope other = {scope.namespace_id, 0, NULL};
	must(skep_lookup(s, &other, keys, BLOCKS, -1, &found, &err), "lookup without the salt");
	check(found.blocks == 0, "nothing without the salt");

	int n = 0;
	for (int device = 0; device < 2; device++)
		for (int order = 0; order < 2; order++)
			for (int together = 0; together < 2; together++)
				for (int page = 2; page <= 16; page *= 2, n++)
					restore(s, &scope, keys[0], order, page, together, device);

	/* What is not there is no error; what is wrong is one, and changes nothing. */
	uint64_t k[LAYERS] = {1, 1, 1};
	int64_t slots[BLOCK * (BLOCKS + 1)] = {0};
	uint32_t arrived = 9;
	uint8_t *room = malloc(1 << 16);
	for (int l = 0; l < LAYERS; l++)
		k[l] = (uint64_t)(uintptr_t)room;
	skep_paged dest = {SKEP_NHD, SKEP_HOST, LAYERS, 16, 1024, 4096, k, k, slots};
	must(skep_restore(s, &scope, keys[BLOCKS], 1, 0, 1, &dest, 0, 0, &arrived, &err), "restore what is not there");
	check(arrived == 0, "nothing arrives");
	slots[0] = 1 << 20;
	check(skep_restore(s, &scope, keys, 1, 0, 1, &dest, 0, 0, &arrived, &err) == 1 && strstr(err.message, "slot"), "a slot beyond the plane");
	dest.where = SKEP_DEVICE;
	check(skep_restore(s, &scope, keys, 1, 0, 1, &dest, 5, 0, &arrived, &err) == 1, "a stream that is none");
	must(skep_close(s, &err), "close");
	check(skep_close(s, &err) == 1, "closed");
	printf("%d caches filled\n", n);
	return 0;
}
