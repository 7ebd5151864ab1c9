//go:build cuda && cgo && linux

#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <string.h>

typedef unsigned long long ptr;

// The driver's own layouts (CUmemAllocationProp, CUmemAccessDesc, CUmemcpyAttributes).
struct prop {
	int type, handles, location, id;
	void *windows;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
struct access { int location, id, flags; };
struct attributes { int order, from_type, from_id, to_type, to_id; unsigned flags; };

enum { PINNED = 1, DEVICE = 1, FILE_DESCRIPTOR = 1, READ_WRITE = 3, PORTABLE_MAPPED = 3, PEER_LAZILY = 1, IN_STREAM_ORDER = 1 };

static struct {
	int (*ctx_set)(void *);
	int (*error_name)(int, const char **);
	int (*wait64)(void *, ptr, uint64_t, unsigned);
	int (*write64)(void *, ptr, uint64_t, unsigned);
	int (*host_func)(void *, void (*)(void *), void *);
	int (*query)(void *);
	int (*copy)(ptr, ptr, size_t, void *);
	int (*batch)(ptr *, ptr *, size_t *, size_t, struct attributes *, size_t *, size_t, size_t *, void *);
	int (*host_alloc)(void **, size_t, unsigned);
	int (*host_at)(ptr *, void *, unsigned);
	int (*host_free)(void *);
	int (*host_register)(void *, size_t, unsigned);
	int (*host_unregister)(void *);
	int (*create)(ptr *, size_t, const struct prop *, ptr);
	int (*release)(ptr);
	int (*reserve)(ptr *, size_t, size_t, ptr, ptr);
	int (*unreserve)(ptr, size_t);
	int (*map)(ptr, size_t, size_t, ptr, ptr);
	int (*unmap)(ptr, size_t);
	int (*access)(ptr, size_t, const struct access *, size_t);
	int (*export)(void *, ptr, int, ptr);
	int (*import)(ptr *, void *, int);
	int (*ipc_get)(skep_ipc *, ptr);
	int (*ipc_open)(ptr *, skep_ipc, unsigned);
	int (*ipc_close)(ptr);
} d;

static void *find(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static void *newest(const char *name, const char *older) {
	void *f = find(name);
	return f ? f : find(older);
}

void skep_load(void) {
	d.ctx_set = find("cuCtxSetCurrent");
	d.error_name = find("cuGetErrorName");
	d.wait64 = newest("cuStreamWaitValue64_v2", "cuStreamWaitValue64");
	d.write64 = newest("cuStreamWriteValue64_v2", "cuStreamWriteValue64");
	d.host_func = find("cuLaunchHostFunc");
	d.query = find("cuStreamQuery");
	d.copy = find("cuMemcpyDtoDAsync_v2");
	d.batch = find("cuMemcpyBatchAsync");
	d.host_alloc = find("cuMemHostAlloc");
	d.host_at = find("cuMemHostGetDevicePointer_v2");
	d.host_free = find("cuMemFreeHost");
	d.host_register = find("cuMemHostRegister_v2");
	d.host_unregister = find("cuMemHostUnregister");
	d.create = find("cuMemCreate");
	d.release = find("cuMemRelease");
	d.reserve = find("cuMemAddressReserve");
	d.unreserve = find("cuMemAddressFree");
	d.map = find("cuMemMap");
	d.unmap = find("cuMemUnmap");
	d.access = find("cuMemSetAccess");
	d.export = find("cuMemExportToShareableHandle");
	d.import = find("cuMemImportFromShareableHandle");
	d.ipc_get = find("cuIpcGetMemHandle");
	d.ipc_open = find("cuIpcOpenMemHandle_v2");
	d.ipc_close = find("cuIpcCloseMemHandle");
}

int skep_simulated(void) { return find("skep_fake_reset") != NULL; }

const char *skep_error(int code) {
	const char *s = NULL;
	return d.error_name && !d.error_name(code, &s) ? s : NULL;
}

// IN makes ctx current for a call of f.
#define IN(f) \
	do { \
		if (!d.f || !d.ctx_set) return SKEP_NOT_SUPPORTED; \
		int in = d.ctx_set(ctx); \
		if (in) return in; \
	} while (0)

int skep_wait64(void *ctx, void *stream, uint64_t at, uint64_t v) { IN(wait64); return d.wait64(stream, at, v, 0); }
int skep_write64(void *ctx, void *stream, uint64_t at, uint64_t v) { IN(write64); return d.write64(stream, at, v, 0); }
int skep_query(void *ctx, void *stream) { IN(query); return d.query(stream); }

static void stage(void *arg) {
	skep_stage *s = arg;
	if (s->to) memcpy(s->to, s->from, s->n);
	__atomic_store_n(&s->done, 1, __ATOMIC_SEQ_CST);
}

int skep_stage_done(skep_stage *s) { return __atomic_load_n(&s->done, __ATOMIC_SEQ_CST); }
int skep_host_func(void *ctx, void *stream, skep_stage *s) { IN(host_func); return d.host_func(stream, stage, s); }

int skep_copy_all(void *ctx, void *stream, uint64_t *to, uint64_t *from, size_t *n, size_t count) {
	IN(copy);
	if (d.batch) {
		struct attributes a = {.order = IN_STREAM_ORDER};
		size_t first = 0, failed;
		int r = d.batch((ptr *)to, (ptr *)from, n, count, &a, &first, 1, &failed, stream);
		if (r != SKEP_NOT_SUPPORTED) return r;
	}
	for (size_t i = 0; i < count; i++) {
		int r = d.copy(to[i], from[i], n[i], stream);
		if (r) return r;
	}
	return 0;
}

int skep_host_alloc(void *ctx, size_t n, void **p, uint64_t *at) {
	IN(host_alloc);
	int r = d.host_alloc(p, n, PORTABLE_MAPPED);
	if (r) return r;
	if ((r = d.host_at((ptr *)at, *p, 0))) d.host_free(*p);
	return r;
}
int skep_host_free(void *ctx, void *p) { IN(host_free); return d.host_free(p); }
int skep_host_register(void *ctx, void *p, size_t n) { IN(host_register); return d.host_register(p, n, PORTABLE_MAPPED); }
int skep_host_unregister(void *ctx, void *p) { IN(host_unregister); return d.host_unregister(p); }

int skep_create(void *ctx, int dev, size_t n, uint64_t *handle) {
	IN(create);
	struct prop p = {.type = PINNED, .handles = FILE_DESCRIPTOR, .location = DEVICE, .id = dev};
	return d.create((ptr *)handle, n, &p, 0);
}

int skep_map(void *ctx, uint64_t handle, size_t n, uint64_t *at) {
	IN(map);
	int r = d.reserve((ptr *)at, n, 0, 0, 0);
	if (r) return r;
	if ((r = d.map(*at, n, 0, handle, 0))) d.unreserve(*at, n);
	return r;
}

int skep_access(void *ctx, uint64_t at, size_t n, int dev) {
	IN(access);
	struct access a = {DEVICE, dev, READ_WRITE};
	return d.access(at, n, &a, 1);
}

int skep_unmap(void *ctx, uint64_t handle, uint64_t at, size_t n) {
	IN(unmap);
	int r = d.unmap(at, n), q = d.unreserve(at, n), s = d.release(handle);
	return r ? r : q ? q : s;
}

int skep_release(void *ctx, uint64_t handle) { IN(release); return d.release(handle); }
int skep_export(void *ctx, uint64_t handle, int *fd) { IN(export); return d.export(fd, handle, FILE_DESCRIPTOR, 0); }
int skep_import(void *ctx, int fd, uint64_t *handle) { IN(import); return d.import((ptr *)handle, (void *)(intptr_t)fd, FILE_DESCRIPTOR); }

int skep_ipc_get(void *ctx, uint64_t at, skep_ipc *h) { IN(ipc_get); return d.ipc_get(h, at); }
int skep_ipc_open(void *ctx, skep_ipc *h, uint64_t *at) { IN(ipc_open); return d.ipc_open((ptr *)at, *h, PEER_LAZILY); }
int skep_ipc_close(void *ctx, uint64_t at) { IN(ipc_close); return d.ipc_close(at); }
