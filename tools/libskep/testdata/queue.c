/* Operations that are submitted and drained, by one thread that waits in poll and by eight at once; of a store in this
 * process or, with a token, of a server. With "restart" the server is killed and started again by who reads what this
 * prints: what was under way ends, what comes after is done. */
#include "skep.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 16, LENGTH = 20000, DEPTH = 4, THREADS = 8, ROUNDS = 20, INVALID = 1, CONFLICT = 17, UNAVAILABLE = 24 };

static __thread skep_error err;
static skep_store store;
static skep_scope scope;
static uint8_t keys[BLOCKS][SKEP_KEY], data[BLOCKS][LENGTH];

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

/* one is an operation about the i-th block. */
static skep_op one(uint32_t what, int i) {
	skep_op op = {.size = sizeof op, .what = what, .tag = (uint64_t)i, .scope = &scope, .keys = keys[i], .n = 1, .timeout_ms = 60000};
	return op;
}

static int readable(int fd) {
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int n;
	do
		n = poll(&p, 1, 0);
	while (n < 0 && errno == EINTR);
	return n == 1;
}

/* await drains one operation, as an engine's loop would: it waits for the descriptor. */
static skep_done await(skep_queue q, int fd) {
	struct pollfd p = {.fd = fd, .events = POLLIN};
	skep_done done;
	uint32_t got = 0;
	while (!got) {
		if (poll(&p, 1, 60000) < 1 && errno != EINTR)
			check(0, "nothing came");
		must(skep_drain(q, &done, 1, &got, &err), "drain");
	}
	return done;
}

static void by_one(void) {
	static uint8_t into[BLOCKS][LENGTH], results[BLOCKS], reasons[BLOCKS];
	int64_t length = LENGTH, shorter = LENGTH - 1;
	skep_hints future = {.next_use_ms = 1000};
	skep_queue q, other;
	skep_done done;
	skep_op ops[BLOCKS];
	void *at[BLOCKS];
	uint32_t taken, got;
	int fd, begun = 0, over = 0;
	must(skep_queue_open(store, DEPTH, &q, &fd, &err), "queue");
	check(!readable(fd), "nothing to drain");
	for (int i = 0; i < BLOCKS; i++) {
		at[i] = data[i];
		ops[i] = one(SKEP_OP_SAVE, i);
		ops[i].blocks = &at[i], ops[i].lengths = &length, ops[i].results = &results[i], ops[i].reasons = &reasons[i];
		results[i] = 99;
	}
	while (over < BLOCKS) { /* as many as it takes, whenever it takes some */
		must(skep_submit(q, ops + begun, BLOCKS - begun, &taken, &err), "submit");
		begun += (int)taken;
		check(begun - over <= DEPTH && begun > over, "no more than the depth, and not none");
		done = await(q, fd);
		check(done.code == 0 && done.what == SKEP_OP_SAVE && done.blocks == 1 && results[done.tag] == 1, "a block is stored");
		over++;
	}
	check(!readable(fd), "all is drained");

	for (int i = 0; i < BLOCKS; i += 2) { /* two at a time: the second's place is too short */
		for (int k = 0; k < 2; k++) {
			at[i + k] = into[i + k];
			ops[k] = one(SKEP_OP_LOAD, i + k);
			ops[k].blocks = &at[i + k], ops[k].lengths = k ? &shorter : &length, ops[k].results = &results[i + k];
		}
		must(skep_submit(q, ops, 2, &taken, &err), "submit");
		check(taken == 2, "both are taken");
		at[i] = at[i + 1] = 0; /* lists are copied */
		for (int k = 0; k < 2; k++) {
			done = await(q, fd);
			check(done.code == 0 && results[done.tag] == (done.tag % 2 ? CONFLICT : 0) && done.blocks == !(done.tag % 2), "what became of a load");
		}
		check(!memcmp(into[i], data[i], LENGTH), "every byte");
	}

	ops[0] = one(SKEP_OP_LOOKUP_EACH, 0), ops[1] = one(SKEP_OP_EXISTS, 1), ops[2] = one(SKEP_OP_HINT, 2), ops[3] = one(SKEP_OP_LOOKUP, 3);
	ops[0].n = ops[1].n = BLOCKS - 1, ops[0].lease_ms = 5000, ops[2].future = &future, ops[3].lease_ms = -1;
	ops[0].results = results, ops[1].results = reasons;
	must(skep_submit(q, ops, 4, &taken, &err), "submit");
	check(taken == 4, "all are taken");
	uint64_t lease = 0;
	for (int i = 0; i < 4; i++) {
		done = await(q, fd);
		check(done.code == 0, "an operation");
		if (done.tag == 0)
			lease = done.lease;
		check(done.blocks == (done.tag == 0 ? BLOCKS - 1 : done.tag == 1 ? 0 : 1), "how many");
		check(done.tag != 3 || (done.bytes == LENGTH && !done.lease), "what a lookup found");
	}
	for (int i = 0; i < BLOCKS - 1; i++)
		check(results[i] == 1 && reasons[i] != 0, "each is there");
	ops[0] = one(SKEP_OP_RENEW, 0), ops[0].lease = lease, ops[0].lease_ms = 1000;
	ops[1] = one(SKEP_OP_RELEASE, 1), ops[1].lease = 12345;
	ops[2] = one(SKEP_OP_WANT, 2), ops[2].results = results;
	ops[3] = one(SKEP_OP_FLUSH, 3);
	must(skep_submit(q, ops, 4, &taken, &err), "submit");
	for (int i = 0; i < 4; i++) {
		done = await(q, fd);
		check(done.code == 0 || (done.tag == 1 && done.code != 0 && done.message[0]), "a lease that is none says so, if anybody");
		check(done.tag != 2 || results[0] == SKEP_WANTED, "what is wanted");
	}
	ops[0] = one(SKEP_OP_DELETE, 0);
	ops[1] = one(77, 1);
	check(skep_submit(q, ops, 2, &taken, &err) == INVALID && taken == 1, "one that is no operation, and the one before it");
	done = await(q, fd);
	check(done.code == 0 && done.blocks == 1, "deleted");
	ops[0].size--;
	check(skep_submit(q, ops, 1, &taken, &err) == INVALID && strstr(err.message, "size") && taken == 0, "of another size");
	ops[0] = one(SKEP_OP_EXISTS, 0), ops[0].n = 0;
	check(skep_submit(q, ops, 1, &taken, &err) == INVALID, "about no keys");
	ops[0] = one(SKEP_OP_LOAD, 0);
	check(skep_submit(q, ops, 1, &taken, &err) == INVALID && taken == 0, "a load to nowhere");
	check(skep_queue_open(store, 0, &other, 0, &err) == INVALID && skep_queue_open(store, 4097, &other, 0, &err) == INVALID, "depths");
	must(skep_queue_close(q, 0, &err), "close");
	check(skep_queue_close(q, 0, &err) == INVALID && skep_drain(q, &done, 1, &got, &err) == INVALID, "it is closed");
}

static skep_queue common;

/* Each submits and drains: what it drains may be another's. */
static void *work(void *left) {
	struct timespec pause = {0, 1000000};
	for (int i = 0; i < ROUNDS; i++) {
		skep_op op = one(SKEP_OP_EXISTS, i % BLOCKS);
		skep_done done;
		uint32_t taken = 0, got;
		while (!taken) {
			must(skep_submit(common, &op, 1, &taken, &err), "submit");
			must(skep_drain(common, &done, 1, &got, &err), "drain");
			if (got) {
				check(done.code == 0, "an operation of a thread");
				__atomic_sub_fetch((int *)left, 1, __ATOMIC_SEQ_CST);
			}
			if (!taken && !got)
				nanosleep(&pause, 0);
		}
	}
	return 0;
}

static void by_many(void) {
	pthread_t threads[THREADS];
	int left = THREADS * ROUNDS, fd;
	must(skep_queue_open(store, DEPTH, &common, &fd, &err), "queue");
	for (int t = 0; t < THREADS; t++)
		check(!pthread_create(&threads[t], 0, work, &left), "a thread");
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], 0);
	while (left) { /* no wake is lost: the descriptor says each time that there is something */
		check(await(common, fd).code == 0, "an operation");
		left--;
	}
	check(!readable(fd), "all is drained");
	/* skep_close ends it. */
}

static void restart(void) {
	skep_queue q;
	skep_done done;
	skep_op op = one(SKEP_OP_EXISTS, 1);
	uint32_t taken;
	int fd;
	char line[80];
	must(skep_queue_open(store, DEPTH, &q, &fd, &err), "queue");
	must(skep_submit(q, &op, 1, &taken, &err), "submit");
	check(await(q, fd).code == 0, "the server is there");
	puts("kill");
	fflush(stdout);
	check(fgets(line, sizeof line, stdin) != 0, "killed");
	op.timeout_ms = 20000;
	must(skep_submit(q, &op, 1, &taken, &err), "submit");
	done = await(q, fd);
	check(done.code == UNAVAILABLE && done.message[0], "the server is gone");
	puts("start");
	fflush(stdout);
	check(fgets(line, sizeof line, stdin) != 0, "started");
	do {
		must(skep_submit(q, &op, 1, &taken, &err), "submit");
		done = await(q, fd);
	} while (done.code == UNAVAILABLE);
	check(done.code == 0, "the same queue, and the server's next run");
	must(skep_queue_close(q, 0, &err), "close");
}

int main(int argc, char **argv) {
	char json[4096];
	if (argc > 2)
		snprintf(json, sizeof json, "{\"connect\": \"%s\", \"token\": \"%s\", \"shared_bytes\": 4194304, \"strict\": true}", argv[1], argv[2]);
	else
		snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 1, \"capacity_bytes\": 268435456}", argv[1]);
	must(skep_open(json, &store, &err), "open");
	must(skep_namespace(store, "{\"name\": \"n\", \"shape\": {\"block_tokens\": 1}}", &scope.namespace_id, &err), "namespace");
	for (int i = 0; i < BLOCKS; i++) {
		memset(keys[i], i + 1, SKEP_KEY);
		for (int k = 0; k < LENGTH; k++)
			data[i][k] = (uint8_t)(i * 31 + k * 7 + (k >> 8));
	}
	if (argc > 3) {
		restart();
	} else {
		by_one();
		by_many();
	}
	must(skep_close(store, &err), "close");
	puts("each operation once");
	return 0;
}
