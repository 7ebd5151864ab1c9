//go:build cgo

#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>

enum { PORTABLE = 1, NO_TIMING = 2 };

static struct {
	int (*current)(void **);
	int (*of_stream)(void *, void **);
	int (*push)(void *);
	int (*pop)(void **);
	int (*host_alloc)(void **, size_t, unsigned);
	int (*host_free)(void *);
	int (*copy)(unsigned long long, const void *, size_t, void *);
	int (*event)(void **, unsigned);
	int (*record)(void *, void *);
	int (*query)(void *);
	int (*destroy)(void *);
} d;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int loaded;

/* load finds the driver that the process has; it does not bring one. */
static int load(void) {
	pthread_mutex_lock(&mu);
	void *lib = loaded ? 0 : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (lib) {
		d.current = dlsym(lib, "cuCtxGetCurrent");
		d.of_stream = dlsym(lib, "cuStreamGetCtx");
		d.push = dlsym(lib, "cuCtxPushCurrent_v2");
		d.pop = dlsym(lib, "cuCtxPopCurrent_v2");
		d.host_alloc = dlsym(lib, "cuMemHostAlloc");
		d.host_free = dlsym(lib, "cuMemFreeHost");
		d.copy = dlsym(lib, "cuMemcpyHtoDAsync_v2");
		d.event = dlsym(lib, "cuEventCreate");
		d.record = dlsym(lib, "cuEventRecord");
		d.query = dlsym(lib, "cuEventQuery");
		d.destroy = dlsym(lib, "cuEventDestroy_v2");
		loaded = d.current && d.of_stream && d.push && d.pop && d.host_alloc && d.host_free && d.copy && d.event && d.record && d.query && d.destroy;
	}
	int ok = loaded;
	pthread_mutex_unlock(&mu);
	return ok;
}

static void *handle(uint64_t stream) { return (void *)(uintptr_t)stream; }

int skep_cuda_context(uint64_t stream, void **context) {
	if (!load()) return -1;
	*context = 0;
	/* 0, 1 and 2 are the driver's names of default streams. */
	return stream > 2 ? d.of_stream(handle(stream), context) : d.current(context);
}

#define WITHIN(call) \
	do { \
		int in_ = d.push(context); \
		if (in_) return in_; \
		int r_ = (call); \
		void *out_; \
		d.pop(&out_); \
		return r_; \
	} while (0)

static int pin(size_t n, void **memory, void **event) {
	int r = d.host_alloc(memory, n, PORTABLE);
	if (r) return r;
	if ((r = d.event(event, NO_TIMING))) d.host_free(*memory);
	return r;
}
static int unpin(void *memory, void *event) {
	d.destroy(event);
	return d.host_free(memory);
}
int skep_cuda_pinned(void *context, size_t n, void **memory, void **event) { WITHIN(pin(n, memory, event)); }
int skep_cuda_unpinned(void *context, void *memory, void *event) { WITHIN(unpin(memory, event)); }
int skep_cuda_copy(void *context, uint64_t stream, uint64_t to, const void *from, size_t n) { WITHIN(d.copy(to, from, n, handle(stream))); }
int skep_cuda_passed(void *context, void *event) { WITHIN(d.query(event)); }
int skep_cuda_mark(void *context, uint64_t stream, void *event) { WITHIN(d.record(event, handle(stream))); }
