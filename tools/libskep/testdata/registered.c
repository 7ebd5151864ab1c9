/* An engine's own memory, a file in /dev/shm, registered with a server: blocks are saved from it and loaded into it. Then the
 * engine cuts the file short under the server, which goes on. */
#define _GNU_SOURCE
#include "skep.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 64, BLOCK = 32 << 10, BYTES = 2 * BLOCKS * BLOCK, INVALID = 1, CONFLICT = 17, UNSUPPORTED = 19 };

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

static uint8_t byte(int block, int i) { return (uint8_t)(block * 31 + i * 7 + (i >> 8) + 1); }

static void load(uint8_t *memory, int is) {
	void *at[BLOCKS];
	for (int i = 0; i < BLOCKS; i++)
		at[i] = memory + i * BLOCK;
	memset(results, 99, sizeof results);
	check(skep_load(store, &scope, keys, BLOCKS, 0, at, lengths, 60000, results, &err) == is, "what a load returns");
}

static void whole(const uint8_t *memory, int n) {
	for (int i = 0; i < n; i++)
		for (int k = 0; k < BLOCK; k++)
			check(results[i] == 0 && memory[i * BLOCK + k] == byte(i, k), "a byte of a block");
}

static int file;
static volatile int over;

/* cutting makes the file short and long again, all the time. */
static void *cutting(void *none) {
	for (unsigned i = 1; !over; i = i * 1103515245 + 12345)
		check(ftruncate(file, i >> 8 & 1 ? BYTES : (i >> 9) % (BYTES / 4096) * 4096) == 0, "cut");
	return none;
}

/* restless saves and loads while the file is cut: each block is whole or is said not to be, and the server lives. */
static void restless(uint8_t *memory) {
	pthread_t cuts;
	uint8_t name[SKEP_KEY];
	const void *from = memory + BLOCKS * BLOCK;
	void *at[BLOCKS];
	memset(name, 200, sizeof name);
	for (int i = 0; i < BLOCKS; i++)
		at[i] = memory + i * BLOCK;
	over = 0;
	check(pthread_create(&cuts, 0, cutting, 0) == 0, "a thread");
	for (int round = 0; round < 60; round++) {
		if (skep_mem_register(store, memory, BYTES, file, 0, 0, &err) != 0)
			continue; /* just now it is too short */
		for (int i = 0; i < 3; i++) {
			int rc = skep_load(store, &scope, keys, BLOCKS, 0, at, lengths, 60000, results, &err);
			check(rc == 0 || rc == INVALID, "what a load of a file that is cut returns");
			rc = skep_save(store, &scope, 0, 0, name, 1, &from, lengths, 60000, results, 0, &err);
			check(rc == 0 || rc == INVALID, "what a save from a file that is cut returns");
		}
		must(skep_mem_unregister(store, memory, 0, &err), "unregister");
	}
	over = 1;
	pthread_join(cuts, 0);
}

int main(int argc, char **argv) {
	char json[4096], name[64];
	const void *from[BLOCKS];
	if (argc < 3)
		return 2;
	snprintf(name, sizeof name, "/skep-registered-%d", (int)getpid());
	int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	check(fd >= 0 && ftruncate(fd, BYTES) == 0, "a file in memory");
	uint8_t *memory = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(memory != MAP_FAILED, "mapped");
	shm_unlink(name);
	/* Of its own the library has room for nothing: what is not in registered memory goes through the socket. */
	snprintf(json, sizeof json, "{\"connect\": \"%s\", \"token\": \"%s\", \"shared_bytes\": 1, \"strict\": true}", argv[1], argv[2]);
	must(skep_open(json, &store, &err), "open");
	must(skep_namespace(store, "{\"name\": \"n\", \"shape\": {\"block_tokens\": 1}}", &scope.namespace_id, &err), "namespace");
	must(skep_mem_register(store, memory, BYTES, -1, 0, 0, &err), "register, by the file that this process has open");
	check(skep_mem_register(store, memory, BYTES, -1, 0, 0, &err) == INVALID, "once");
	check(skep_mem_register(store, json, 4096, -1, 0, 0, &err) != 0, "memory of no file");
	for (int i = 0; i < BLOCKS; i++) {
		memset(keys[i], i + 1, SKEP_KEY);
		lengths[i] = BLOCK;
		from[i] = memory + i * BLOCK;
		for (int k = 0; k < BLOCK; k++)
			memory[i * BLOCK + k] = byte(i, k);
	}
	must(skep_save(store, &scope, 0, 0, keys, BLOCKS, from, lengths, 0, results, 0, &err), "save");
	for (int i = 0; i < BLOCKS; i++)
		check(results[i] == 1, "stored");
	for (int shift = 0; shift < 200; shift += 100) { /* where drives can write, and beside it */
		memset(memory, 0xee, BYTES);
		load(memory + shift, 0);
		whole(memory + shift, BLOCKS);
	}
	must(skep_mem_unregister(store, memory, 0, &err), "unregister");
	check(skep_mem_unregister(store, memory, 0, &err) == INVALID, "once");
	must(skep_mem_register(store, memory, BYTES, fd, 0, 0, &err), "register, by descriptor");
	load(memory, 0);
	if (argc > 3) { /* cut short */
		check(ftruncate(fd, BLOCKS / 2 * BLOCK) == 0, "cut short");
		load(memory, 0);
		for (int i = 0; i < BLOCKS; i++)
			check(results[i] == (i < BLOCKS / 2 ? 0 : CONFLICT), "what became of a block");
		whole(memory, BLOCKS / 2);
		load(memory, INVALID);
		from[0] = memory;
		check(skep_save(store, &scope, 0, 0, keys, 1, from, lengths, 0, results, 0, &err) == INVALID, "nothing is saved from there");
		must(skep_mem_unregister(store, memory, 0, &err), "unregister");
		file = fd;
		restless(memory);
		uint8_t *own = malloc(BLOCKS * BLOCK);
		load(own, 0);
		whole(own, BLOCKS);
	}
	must(skep_close(store, &err), "close");
	printf("saved and loaded in place\n");
	return 0;
}
