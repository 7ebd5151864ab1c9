/* What a store does besides storing and loading, in this process or, with a token, of a server: hints, lists of keys,
 * statistics, purges, and namespaces that go. */
#include "skep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 5, LENGTH = 4096, INVALID = 1, NOT_FOUND = 2 };

static skep_error err;
static skep_store store;
static skep_scope scope;
static uint8_t keys[BLOCKS][SKEP_KEY], block[LENGTH], results[BLOCKS];

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

static void save(const skep_scope *to) {
	const void *from[BLOCKS];
	int64_t each[BLOCKS];
	for (int i = 0; i < BLOCKS; i++)
		from[i] = block, each[i] = LENGTH;
	must(skep_save(store, to, 0, 0, keys, BLOCKS, from, each, 0, results, 0, &err), "save");
}

static int there(const skep_scope *of) {
	int n = 0;
	must(skep_exists(store, of, keys, BLOCKS, 0, results, &err), "exists");
	for (int i = 0; i < BLOCKS; i++)
		n += results[i] != 0;
	return n;
}

static void hints(void) {
	skep_hints future = {.next_use_ms = 60000, .steps = 2, .program = "agent-7"};
	char program[600];
	uint32_t known = 99;
	must(skep_hint(store, &scope, keys, BLOCKS, &future, 0, &known, &err), "hint");
	check(known == BLOCKS, "all are stored");
	must(skep_hint(store, &scope, "no key that was ever stored ....", 1, &future, 0, &known, &err), "hint");
	check(known == 0, "of what is not stored nothing is kept");
	future.pin_ms = 25LL * 3600 * 1000;
	check(skep_hint(store, &scope, keys, 1, &future, 0, &known, &err) == INVALID && strstr(err.message, "pin"), "a pin of more than a day");
	future.pin_ms = INT64_MIN;
	check(skep_hint(store, &scope, keys, 1, &future, 0, &known, &err) == INVALID, "a pin of less than nothing");
	future.pin_ms = 0, future.drop = 2;
	check(skep_hint(store, &scope, keys, 1, &future, 0, &known, &err) == INVALID && strstr(err.message, "drop"), "neither to drop nor not to");
	memset(program, 'p', sizeof program), program[sizeof program - 1] = 0;
	future.drop = 0, future.program = program;
	check(skep_hint(store, &scope, keys, 1, &future, 0, &known, &err) == INVALID, "a program of a long name");
	check(skep_hint(store, &scope, keys, 1, 0, 0, &known, &err) == INVALID, "no hint");
	check(skep_hint(store, &scope, keys, 1, &future, 0, 0, &err) == INVALID, "an answer to nowhere");
}

/* Every key once, by twos. */
static void lists(void) {
	uint8_t some[2][SKEP_KEY];
	uint64_t place = 0;
	uint32_t n;
	int seen[BLOCKS] = {0}, calls = 0;
	do {
		must(skep_list(store, scope.namespace_id, &place, some, 2, 0, &n, &err), "list");
		check(n <= 2 && calls++ < 1000, "no more than asked for, and an end");
		for (uint32_t i = 0; i < n; i++)
			for (int k = 0; k < BLOCKS; k++)
				seen[k] |= !memcmp(some[i], keys[k], SKEP_KEY);
	} while (place != 0);
	for (int k = 0; k < BLOCKS; k++)
		check(seen[k], "a key of the namespace");
	check(skep_list(store, scope.namespace_id, &place, some, 0, 0, &n, &err) == INVALID, "a list of nothing");
	check(skep_list(store, scope.namespace_id, 0, some, 1, 0, &n, &err) == INVALID, "from nowhere");
}

static void statistics(void) {
	uint64_t n = 0, again;
	char one[2] = "x", *text;
	must(skep_stats(store, 0, 0, 0, &n, &err), "statistics");
	check(n > 100, "a length without room");
	must(skep_stats(store, 0, one, 1, &n, &err), "statistics");
	check(one[0] == 'x' && one[1] == 0, "nothing is written where it does not fit");
	text = malloc(2 * n);
	must(skep_stats(store, 0, text, 2 * n, &again, &err), "statistics");
	check(again < 2 * n && strlen(text) == again && strstr(text, "\"put_blocks\":5,"), "the statistics");
	free(text);
	check(skep_stats(store, 0, 0, 9, &n, &err) == INVALID, "room nowhere");
}

/* What is stored is told of, then what happens to it. A stream goes on where another left off. */
static void events(void) {
	skep_scope other = {0, 0, 0};
	skep_event some[3], deleted;
	skep_events stream, behind;
	uint32_t got, gone;
	int seen = 0, calls = 0;
	must(skep_namespace(store, "{\"name\": \"told\", \"chained\": true, \"shape\": {\"block_tokens\": 1}}", &other.namespace_id, &err), "namespace");
	save(&other);
	must(skep_flush(store, 0, &err), "flush");
	must(skep_events_open(store, 0, 0, 1, &stream, &err), "follow from a snapshot");
	while (seen != (1 << BLOCKS) - 1) {
		must(skep_events_next(stream, 60000, some, 3, &got, &err), "stored blocks");
		check(got <= 3 && calls++ < 1000, "no more than asked for");
		for (uint32_t i = 0; i < got; i++)
			if (some[i].namespace_id == other.namespace_id && some[i].kind == SKEP_EVENT_STORED) {
				int k = some[i].key[0] - 1;
				check(k >= 0 && k < BLOCKS && !memcmp(some[i].key, keys[k], SKEP_KEY), "a key");
				check((int)some[i].depth == k && some[i].has_parent == (k > 0) && some[i].tier != 0, "its place in the chain");
				check(k == 0 || !memcmp(some[i].parent, keys[k - 1], SKEP_KEY), "its parent");
				seen |= 1 << k;
			}
	}
	must(skep_delete(store, &other, keys[4], 1, 0, &gone, &err), "delete");
	do {
		must(skep_events_next(stream, 60000, &deleted, 1, &got, &err), "what is deleted");
		check(calls++ < 1000, "an end");
	} while (got == 0 || deleted.kind != SKEP_EVENT_DELETED);
	check(!memcmp(deleted.key, keys[4], SKEP_KEY) && deleted.tier == 0 && deleted.unix_ns > 0, "which, and that it is gone");
	must(skep_events_next(stream, 1, some, 3, &got, &err), "nothing");
	check(got == 0, "nothing more");
	must(skep_delete(store, &other, keys[3], 1, 0, &gone, &err), "delete");
	must(skep_events_open(store, deleted.epoch, deleted.seq + 1, 0, &behind, &err), "follow from there");
	must(skep_events_next(behind, 60000, some, 3, &got, &err), "the next");
	check(got > 0 && some[0].seq == deleted.seq + 1 && !memcmp(some[0].key, keys[3], SKEP_KEY), "the next event");
	check(skep_events_next(stream, 0, some, 0, &got, &err) == INVALID, "no room");
	must(skep_events_close(behind, &err), "close");
	check(skep_events_close(behind, &err) == INVALID && skep_events_next(behind, 0, some, 1, &got, &err) == INVALID, "it is closed");
	must(skep_namespace_delete(store, other.namespace_id, 0, &err), "delete the namespace"); /* and the store closes the stream */
}

/* A block of two parts, written out of order by pieces. */
static void parts(void) {
	static uint8_t kv[3 * LENGTH], state[100], into[3 * LENGTH];
	skep_part both[] = {{"kv", sizeof kv}, {"state", sizeof state}};
	void *at[1] = {into};
	int64_t length = sizeof kv;
	uint8_t key[SKEP_KEY] = "a block of two parts", outcome = 9, reason = 9;
	skep_writer w;
	for (size_t i = 0; i < sizeof kv; i++)
		kv[i] = (uint8_t)(i * 7 + (i >> 8));
	memset(state, 's', sizeof state);
	must(skep_begin(store, &scope, 0, 0, key, both, 2, 0, &w, &err), "begin");
	must(skep_write(w, "kv", LENGTH, kv + LENGTH, 2 * LENGTH, 0, &err), "write");
	must(skep_write(w, "state", 0, state, sizeof state, 0, &err), "write");
	check(skep_commit(w, 0, 0, &outcome, &reason, &err) == INVALID, "not all is written");
	must(skep_write(w, "kv", 0, kv, LENGTH, 0, &err), "write");
	check(skep_write(w, "none", 0, kv, 1, 0, &err) == INVALID, "a part that it has not");
	must(skep_commit(w, 0, 0, &outcome, &reason, &err), "commit");
	check(outcome == 1 && reason == 0 && skep_commit(w, 0, 0, 0, 0, &err) == INVALID, "it is stored, and over");
	must(skep_load(store, &scope, key, 1, 0, at, &length, 0, results, &err), "load");
	check(results[0] == 0 && !memcmp(into, kv, sizeof kv), "every byte");
	length = sizeof state;
	must(skep_load_part(store, &scope, "state", key, 1, 0, at, &length, 0, results, &err), "load the other part");
	check(results[0] == 0 && !memcmp(into, state, sizeof state), "every byte of it");
	must(skep_load_part(store, &scope, "none", key, 1, 0, at, &length, 0, results, &err), "load a part that it has not");
	check(results[0] != 0, "it is not there");
	check(skep_load_part(store, &scope, "", key, 1, 0, at, &length, 0, results, &err) == INVALID, "a part of no name");

	key[0] = 'b';
	must(skep_begin(store, &scope, 0, 0, key, both, 2, 1000, &w, &err), "begin");
	must(skep_abort(w, &err), "abort");
	must(skep_exists(store, &scope, key, 1, 0, results, &err), "exists");
	check(results[0] == 0 && skep_abort(w, &err) == INVALID, "nothing is left");
	both[1].name = 0;
	check(skep_begin(store, &scope, 0, 0, key, both, 2, 0, &w, &err) == INVALID, "a part without a name");
	check(skep_begin(store, &scope, 0, 0, key, both, 0, 0, &w, &err) == INVALID, "no parts");
	both[1].name = "state";
	must(skep_begin(store, &scope, 0, 0, key, both, 2, 0, &w, &err), "one that the store closes");
}

static void purges(void) {
	skep_scope salted = {scope.namespace_id, 4, "salt"};
	uint32_t id = scope.namespace_id;
	save(&salted);
	must(skep_purge(store, 0, 0, &salted, 0, &err), "purge a salt");
	check(there(&salted) == 0 && there(&scope) == BLOCKS, "the salt's are gone, and no others");
	check(skep_purge(store, "t", 0, &scope, 0, &err) == INVALID && skep_purge(store, 0, 0, 0, 0, &err) == INVALID, "one thing at a time");
	must(skep_purge(store, 0, "of no namespace", 0, 0, &err), "purge a model");
	check(there(&scope) == BLOCKS, "another model's");
	must(skep_purge(store, 0, 0, &scope, 0, &err), "purge a namespace");
	check(there(&scope) == 0, "all are gone");
	save(&scope);
	check(there(&scope) == BLOCKS, "it is used again");
	must(skep_purge(store, "default", 0, 0, 0, &err), "purge a tenant");
	check(there(&scope) == 0, "all of the tenant are gone");

	must(skep_namespace_delete(store, id, 0, &err), "delete the namespace");
	check(skep_namespace_delete(store, id, 0, &err) == NOT_FOUND, "it is gone");
	check(skep_exists(store, &scope, keys, BLOCKS, 0, results, &err) == NOT_FOUND, "blocks of none");
	must(skep_namespace(store, "{\"name\": \"n\", \"chained\": true, \"shape\": {\"block_tokens\": 1}}", &scope.namespace_id, &err), "another of that name");
	check(scope.namespace_id != id, "a number is of one namespace");
}

int main(int argc, char **argv) {
	char json[4096];
	if (argc > 2)
		snprintf(json, sizeof json, "{\"connect\": \"%s\", \"token\": \"%s\", \"strict\": true}", argv[1], argv[2]);
	else
		snprintf(json, sizeof json, "{\"dir\": \"%s\", \"devices\": 1, \"capacity_bytes\": 268435456}", argv[1]);
	must(skep_open(json, &store, &err), "open");
	must(skep_namespace(store, "{\"name\": \"n\", \"shape\": {\"block_tokens\": 1}}", &scope.namespace_id, &err), "namespace");
	for (int i = 0; i < BLOCKS; i++)
		memset(keys[i], i + 1, SKEP_KEY);
	save(&scope);
	hints();
	lists();
	statistics();
	events();
	parts();
	purges();
	must(skep_close(store, &err), "close");
	puts("hinted, listed, counted and purged");
	return 0;
}
