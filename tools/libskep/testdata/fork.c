/* A process with a store open forks: every call is refused in the child, at once; the parent goes on, closes the store
 * and opens it again while the child is there. With "die" it ends without closing, and its child stays: it prints the
 * child's number. With "open" it says what an open says. */
#include "skep.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static skep_error err;
static int wrong;

static void refused(const char *call, int rc) {
	if (rc != 19 || err.code != 19 || !strstr(err.message, "forked")) {
		fprintf(stderr, "%s in a forked process: %d %d %s\n", call, rc, (int)err.code, err.message);
		wrong = 1;
	}
	memset(&err, 0, sizeof err);
}

#define REFUSED(call) refused(#call, call)

static void must(int rc) {
	if (rc) {
		fprintf(stderr, "%d %s\n", rc, err.message);
		exit(1);
	}
}

static int in_child(skep_store s) {
	skep_store other = 0;
	skep_scope scope = {1, 0, 0};
	skep_found found;
	skep_claimed claimed;
	skep_restoring r = 0;
	skep_prefill p = 0;
	skep_stream stream = 0;
	char key[SKEP_KEY] = "key";
	uint8_t state[1];
	uint32_t n = 0;
	uint64_t at = 0;
	void *memory = 0;
	int fd = 0;
	int64_t offset = 0;
	REFUSED(skep_open("{\"dir\": \"elsewhere\"}", &other, &err));
	REFUSED(skep_namespace(s, "{}", &n, &err));
	REFUSED(skep_put(s, &scope, 0, 0, key, 1, 0, 0, state, &err));
	REFUSED(skep_lookup(s, &scope, key, 1, -1, &found, &err));
	REFUSED(skep_lookup_within(s, &scope, key, 1, -1, 1000, &found, &err));
	REFUSED(skep_release(s, 1, &err));
	REFUSED(skep_renew(s, 1, 1000, &err));
	REFUSED(skep_exists(s, &scope, key, 1, 0, state, &err));
	REFUSED(skep_load(s, &scope, key, 1, 0, 0, 0, 0, state, &err));
	REFUSED(skep_save(s, &scope, 0, 0, key, 1, 0, 0, 0, state, 0, &err));
	REFUSED(skep_want(s, &scope, key, 1, 0, 0, state, 0, &err));
	REFUSED(skep_delete(s, &scope, key, 1, 0, &n, &err));
	REFUSED(skep_hint(s, &scope, key, 1, 0, 0, &n, &err));
	REFUSED(skep_purge(s, 0, 0, &scope, 0, &err));
	REFUSED(skep_namespace_delete(s, 1, 0, &err));
	REFUSED(skep_list(s, 1, &at, key, 1, 0, &n, &err));
	REFUSED(skep_stats(s, 0, 0, 0, &at, &err));
	REFUSED(skep_events_open(s, 0, 0, 0, &at, &err));
	REFUSED(skep_events_next(1, 0, 0, 0, &n, &err));
	REFUSED(skep_events_close(1, &err));
	REFUSED(skep_begin(s, &scope, 0, 0, key, 0, 0, 0, &at, &err));
	REFUSED(skep_write(1, "kv", 0, key, 1, 0, &err));
	REFUSED(skep_commit(1, 0, 0, 0, 0, &err));
	REFUSED(skep_abort(1, &err));
	REFUSED(skep_load_part(s, &scope, "kv", key, 1, 0, 0, 0, 0, state, &err));
	REFUSED(skep_queue_open(s, 1, &at, &fd, &err));
	REFUSED(skep_submit(1, 0, 0, &n, &err));
	REFUSED(skep_drain(1, 0, 0, &n, &err));
	REFUSED(skep_queue_close(1, 0, &err));
	REFUSED(skep_direct(s, 0, &err));
	REFUSED(skep_restore(s, &scope, key, 1, 0, 1, 0, 0, 0, &n, &err));
	REFUSED(skep_restore_begin(s, &scope, key, 1, 0, 1, 0, 0, 0, 0, 0, &r, &err));
	REFUSED(skep_claim(r, 0, 1, 0, &claimed, &err));
	REFUSED(skep_computed(r, 0, 1, 0, 0, &err));
	REFUSED(skep_restore_poll(r, 0, state, &n, &err));
	REFUSED(skep_restore_end(r, 0, &err));
	REFUSED(skep_prefill_begin(s, &scope, key, 1, 0, 0, &p, &n, &err));
	REFUSED(skep_prefill_places(p, 0, &at, &err));
	REFUSED(skep_prefill_step(p, 1, &err));
	REFUSED(skep_prefill_loaded(p, 0, 0, &err));
	REFUSED(skep_prefill_written(p, 0, 0, &err));
	REFUSED(skep_prefill_read(p, 0, 0, &err));
	REFUSED(skep_prefill_commit(p, 0, &n, &err));
	REFUSED(skep_prefill_end(p, 0, &err));
	REFUSED(skep_shared_alloc(s, 4096, &memory, &fd, &offset, &err));
	REFUSED(skep_shared_free(s, memory, &err));
	REFUSED(skep_device_alloc(s, 1, &at, &err));
	REFUSED(skep_device_free(s, at, &err));
	REFUSED(skep_device_read(s, at, 1, key, &err));
	REFUSED(skep_device_write(s, at, 1, key, &err));
	REFUSED(skep_stream_new(s, &stream, &err));
	REFUSED(skep_stream_copy(s, stream, at, at, 1, &err));
	REFUSED(skep_stream_sync(s, stream, 0, &err));
	REFUSED(skep_stream_free(s, stream, &err));
	REFUSED(skep_close(s, &err));
	if (skep_close(s, 0) != 19)
		wrong = 1;
	if (skep_forked() != 1 || skep_version() != SKEP_VERSION)
		wrong = 1;
	return wrong;
}

int main(int argc, char **argv) {
	char spec[4096];
	const char *mode = argc > 2 ? argv[2] : "";
	skep_store s = 0;
	skep_scope scope = {0, 0, 0};
	skep_found found;
	char key[SKEP_KEY] = "key";
	int status, hold[2];
	pid_t child;
	snprintf(spec, sizeof spec, "{\"dir\": \"%s\", \"devices\": 1, \"capacity_bytes\": 268435456}", argv[1]);
	if (!strcmp(mode, "open")) {
		int rc = skep_open(spec, &s, &err);
		printf("%d %s\n", rc, err.message);
		return rc && rc != 14;
	}
	must(skep_open(spec, &s, &err));
	must(skep_namespace(s, "{\"tenant\": \"t\", \"name\": \"n\", \"shape\": {\"block_tokens\": 1}}", &scope.namespace_id, &err));
	if (pipe(hold))
		return 1;
	child = fork();
	if (child == 0) {
		int bad = in_child(s);
		close(hold[1]);
		if (!strcmp(mode, "die")) {
			close(1); /* who reads what the parent prints waits for that */
			close(2);
			pause();
		}
		if (read(hold[0], key, 1) < 0)
			bad = 1;
		_exit(bad);
	}
	if (!strcmp(mode, "die")) {
		printf("%d\n", (int)child);
		fflush(stdout);
		kill(getpid(), SIGKILL);
	}
	if (skep_forked() != 0)
		return 1;
	must(skep_lookup(s, &scope, key, 1, -1, &found, &err));
	must(skep_close(s, &err));
	must(skep_open(spec, &s, &err)); /* the child has the files of the first open yet */
	must(skep_lookup(s, &scope, key, 1, -1, &found, &err));
	must(skep_close(s, &err));
	close(hold[0]);
	close(hold[1]);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	puts("refused in the child, and the parent goes on");
	return 0;
}
