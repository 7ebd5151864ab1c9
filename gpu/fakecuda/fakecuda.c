// A libcuda.so.1 of our own, for machines without a GPU: "device memory" is host memory,
// and queued work runs when somebody asks whether it is done, never before.
//
// It is made to show mistakes, as gpu/sim is. Copies read late and write late, in two
// pieces; which stream goes on is drawn by a seeded generator at each step, so a wait that is
// missing shows as wrong bytes, and with the seed it shows again. Device addresses cannot be
// dereferenced by the host. It is stricter than a driver: an asynchronous copy of host memory
// that is not pinned is refused (a driver would do it in another way, slowly), and a copy
// from a device whose memory was not made accessible is an illegal address.
//
// What skep does not use returns 801, not supported (stubs.c). Functions that begin with
// skep_fake are not a driver's: tests call them. SKEP_FAKECUDA_DEVICES (0 to 16, 2 when
// unset) and SKEP_FAKECUDA_MEMORY (bytes of each, 256 MiB when unset) say what there is.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

struct device devices[DEVICES];

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
mem *mems;
pin *pins;
static stream *streams;
int ndevices = -1;
static int nevents;
size_t memory = (size_t)256 << 20;
static u64 rng = 88172645463325252ull;
static int link_idle = 6; // most steps that a piece of a copy between devices takes
__thread int current = -1;

static u64 rnd(u64 n) {
	rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
	return n ? (rng * 2685821657736338717ull >> 11) % n : 0;
}

static void setup(void) {
	if (ndevices >= 0) return;
	const char *s = getenv("SKEP_FAKECUDA_DEVICES");
	ndevices = s ? atoi(s) : 2;
	if (ndevices < 0 || ndevices > DEVICES) ndevices = 0;
	if ((s = getenv("SKEP_FAKECUDA_MEMORY"))) memory = strtoull(s, 0, 10);
}

// --- what a copy may touch -------------------------------------------------------------

mem *find(ptr p, size_t n) {
	for (mem *m = mems; m; m = m->next)
		if (p >= m->at && p - m->at < m->n && n <= m->n - (p - m->at)) return m;
	return 0;
}

static int pinned(const void *p, size_t n) {
	for (pin *i = pins; i; i = i->next)
		if ((char *)p >= i->at && n <= i->n && (size_t)((char *)p - i->at) <= i->n - n) return 1;
	return 0;
}

static int reach(int dev, ptr p, size_t n) {
	if (!(p & TAG)) return pinned(HOST(p), n);
	mem *m = find(p, n);
	if (!m || m->reserved || (m->dev != dev && (devices[m->dev].failed || (m->revoking && --m->touches < 0)))) return 0;
	return m->access >> dev & 1 || (!m->handle && devices[dev].peers >> m->dev & 1);
}

static int foreign(int dev, ptr p) {
	mem *m = p & TAG ? find(p, 0) : 0;
	return m && m->dev != dev;
}

// --- the scheduler ---------------------------------------------------------------------

static void drop(stream *s) {
	while (s->head) {
		op *o = s->head;
		s->head = o->next;
		free(o->held);
		free(o);
	}
	s->tail = &s->head;
}

static void fail(int dev, int code) {
	if (!devices[dev].failed) devices[dev].failed = code;
	for (stream *s = streams; s; s = s->next)
		if (s->dev == dev) drop(s);
}

static int runnable(stream *s) {
	op *o = s->head;
	if (!o || s->hung) return 0;
	if (o->kind == WAIT) return *(volatile u64 *)HOST(o->addr) >= o->value;
	if (o->kind == WAITEVENT) return o->ev->done >= o->value;
	return 1;
}

static void end(stream *s) {
	op *o = s->head;
	if (!(s->head = o->next)) s->tail = &s->head;
	free(o->held);
	free(o);
}

// step does a little of the first piece of work of s.
static void step(stream *s) {
	op *o = s->head;
	if (o->idle > 0) {
		o->idle--;
		return;
	}
	switch (o->kind) {
	case WRITE: __atomic_store_n((u64 *)HOST(o->addr), o->value, __ATOMIC_SEQ_CST); break;
	case RECORD: o->ev->done = o->value; break;
	case CALL: o->call(o->arg); break;
	case COPY: {
		if (!reach(s->dev, o->to, o->n) || !reach(s->dev, o->from, o->n)) {
			fail(s->dev, ILLEGAL);
			return;
		}
		size_t at = o->phase < 2 ? 0 : o->cut, n = o->phase < 2 ? o->cut : o->n - o->cut;
		if (o->phase % 2) memcpy(HOST(o->to) + at, o->held, n);
		else memcpy(o->held, HOST(o->from) + at, n);
		if (o->phase == 0 && n && devices[s->dev].flip) devices[s->dev].flip = 0, o->held[rnd(n)] ^= 1 << rnd(8);
		if (o->phase++ < 3) {
			o->idle = rnd(foreign(s->dev, o->to) || foreign(s->dev, o->from) ? link_idle : 6);
			return;
		}
	}
	}
	end(s);
}

// progress does up to n steps. 0: nothing can be done.
static int progress(int n) {
	for (; n > 0; n--) {
		int can = 0;
		stream *pick = 0;
		for (stream *s = streams; s; s = s->next)
			if (runnable(s) && rnd(++can) == 0) pick = s;
		if (!pick) return 0;
		for (int some = 1 + rnd(4); some > 0 && runnable(pick); some--) step(pick);
	}
	return 1;
}

static int queue(stream *s, op o) {
	if (!s || s->dev != current) return BADHANDLE;
	op *q = malloc(sizeof o);
	*q = o;
	q->idle += rnd(8);
	if (o.kind == COPY) {
		q->cut = o.n > 1 ? 1 + rnd(o.n - 1) : o.n;
		q->held = malloc(o.n ? o.n : 1);
	}
	*s->tail = q;
	s->tail = &q->next;
	return OK;
}

// in locks, and says why a call cannot be made.
int in(void) {
	pthread_mutex_lock(&mu);
	if (current < 0 || !devices[current].retained) return BADCONTEXT;
	return devices[current].failed;
}

int out(int r) {
	pthread_mutex_unlock(&mu);
	return r;
}


// --- devices and contexts --------------------------------------------------------------

int cuInit(unsigned flags) {
	pthread_mutex_lock(&mu);
	setup();
	return out(flags ? INVALID : ndevices ? OK : NODEVICE);
}
int cuDriverGetVersion(int *v) { return *v = 12080, OK; }
int cuDeviceGetCount(int *n) { return *n = ndevices, OK; }
int cuDeviceGet(int *d, int i) { return i < 0 || i >= ndevices ? BADDEVICE : (*d = i, OK); }
int cuDeviceTotalMem_v2(size_t *n, int d) { return *n = memory, OK; }
int cuDeviceGetName(char *name, int n, int d) {
	snprintf(name, n, "fake GPU %d of skep's fake driver, simulated in host memory", d);
	return OK;
}
int cuDeviceGetPCIBusId(char *id, int n, int d) {
	snprintf(id, n, "ffff:%02x:00.0", d);
	return OK;
}
int cuDeviceGetAttribute(int *v, int a, int d) {
	// unified addressing, 64-bit stream memory operations (old and new), virtual memory
	// management, file descriptors as handles
	*v = a == 41 || a == 93 || a == 122 || a == 102 || a == 103;
	return OK;
}
int cuDeviceCanAccessPeer(int *can, int d, int e) { return *can = d != e, OK; }
int cuDevicePrimaryCtxRetain(void **ctx, int d) {
	if (d < 0 || d >= ndevices) return BADDEVICE;
	pthread_mutex_lock(&mu);
	if (devices[d].failed) return out(devices[d].failed);
	devices[d].retained++;
	*ctx = &devices[d];
	return out(OK);
}
int cuDevicePrimaryCtxRelease_v2(int d) {
	pthread_mutex_lock(&mu);
	if (d < 0 || d >= ndevices || !devices[d].retained) return out(BADCONTEXT);
	devices[d].retained--;
	return out(OK);
}
static __thread int stack[16], depth;
int cuCtxGetCurrent(void **ctx) { return *ctx = current < 0 ? 0 : &devices[current], OK; }
int cuCtxPushCurrent_v2(void *ctx) {
	if (!ctx || depth == 16) return BADCONTEXT;
	stack[depth++] = current;
	return current = (struct device *)ctx - devices, OK;
}
int cuCtxPopCurrent_v2(void **ctx) {
	if (!depth) return BADCONTEXT;
	return cuCtxGetCurrent(ctx), current = stack[--depth], OK;
}
int cuStreamGetCtx(stream *s, void **ctx) { return *ctx = &devices[s->dev], OK; }
int cuCtxSetCurrent(void *ctx) { return current = ctx ? (struct device *)ctx - devices : -1, OK; }
int cuCtxEnablePeerAccess(void *ctx, unsigned flags) {
	IN;
	int d = (struct device *)ctx - devices;
	if (d == current) return out(INVALID);
	if (devices[current].peers >> d & 1) return out(PEERTWICE);
	devices[current].peers |= 1 << d;
	return out(OK);
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
	IN;
	*left = memory - devices[current].used, *total = memory;
	return out(OK);
}
int cuGetErrorName(int e, const char **s) {
	static const struct { int e; const char *s; } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
		{46, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
		{201, "CUDA_ERROR_INVALID_CONTEXT"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
		{600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"},
		{801, "CUDA_ERROR_NOT_SUPPORTED"}};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].e == e) return *s = names[i].s, OK;
	return *s = 0, INVALID;
}

// --- streams and events ----------------------------------------------------------------

int cuStreamCreate(stream **s, unsigned flags) {
	IN;
	stream *n = calloc(1, sizeof *n);
	n->dev = current, n->tail = &n->head, n->next = streams;
	*s = streams = n;
	return out(OK);
}

int cuStreamDestroy_v2(stream *s) {
	pthread_mutex_lock(&mu);
	for (stream **i = &streams; *i; i = &(*i)->next)
		if (*i == s) {
			drop(s);
			*i = s->next;
			free(s);
			return out(OK);
		}
	return out(BADHANDLE);
}

int cuStreamQuery(stream *s) {
	IN;
	progress(16 + rnd(64));
	if (devices[current].failed) return out(devices[current].failed);
	return out(s && s->head ? NOTREADY : OK);
}

int cuStreamSynchronize(stream *s) {
	for (int r; (r = cuStreamQuery(s)) != OK;) {
		if (r != NOTREADY) return r;
		usleep(50);
	}
	return OK;
}

int cuEventCreate(event **e, unsigned flags) {
	IN;
	if (devices[current].event_code) return out(devices[current].event_code);
	*e = calloc(1, sizeof **e);
	(*e)->dev = current, nevents++;
	return out(OK);
}

// An event that is still in a queue must outlive it: its memory stays.
int cuEventDestroy_v2(event *e) {
	pthread_mutex_lock(&mu);
	nevents--;
	if (e->asked == e->done) free(e);
	return out(OK);
}

int cuEventRecord(event *e, stream *s) { IN; return out(queue(s, (op){.kind = RECORD, .ev = e, .value = ++e->asked})); }
int cuStreamWaitEvent(stream *s, event *e, unsigned flags) { IN; return out(queue(s, (op){.kind = WAITEVENT, .ev = e, .value = e->asked})); }
int cuEventQuery(event *e) {
	IN;
	progress(16 + rnd(64));
	if (devices[current].failed) return out(devices[current].failed);
	return out(e->done < e->asked ? NOTREADY : OK);
}

static int wait64(stream *s, ptr a, u64 v, unsigned flags) {
	IN;
	return out(flags || !pinned(HOST(a), 8) ? INVALID : queue(s, (op){.kind = WAIT, .addr = a, .value = v}));
}
static int write64(stream *s, ptr a, u64 v, unsigned flags) {
	IN;
	return out(flags || !pinned(HOST(a), 8) ? INVALID : queue(s, (op){.kind = WRITE, .addr = a, .value = v}));
}
int cuStreamWaitValue64(stream *s, ptr a, u64 v, unsigned f) { return wait64(s, a, v, f); }
int cuStreamWaitValue64_v2(stream *s, ptr a, u64 v, unsigned f) { return wait64(s, a, v, f); }
int cuStreamWriteValue64(stream *s, ptr a, u64 v, unsigned f) { return write64(s, a, v, f); }
int cuStreamWriteValue64_v2(stream *s, ptr a, u64 v, unsigned f) { return write64(s, a, v, f); }
int cuLaunchHostFunc(stream *s, void (*f)(void *), void *arg) { IN; return out(queue(s, (op){.kind = CALL, .call = f, .arg = arg})); }

// --- copies ----------------------------------------------------------------------------

static int copy(stream *s, ptr to, ptr from, size_t n) {
	IN;
	struct device *d = &devices[current];
	if (++d->copies == d->copy_fail_at) {
		if (d->copy_code >= 100) fail(current, d->copy_code); // it stays
		return out(d->copy_code);
	}
	if ((!(to & TAG) && !pinned(HOST(to), n)) || (!(from & TAG) && !pinned(HOST(from), n))) return out(INVALID);
	return out(queue(s, (op){.kind = COPY, .to = to, .from = from, .n = n}));
}
int cuMemcpyHtoDAsync_v2(ptr to, const void *from, size_t n, stream *s) { return copy(s, to, (ptr)(uintptr_t)from, n); }
int cuMemcpyDtoHAsync_v2(void *to, ptr from, size_t n, stream *s) { return copy(s, (ptr)(uintptr_t)to, from, n); }
int cuMemcpyDtoDAsync_v2(ptr to, ptr from, size_t n, stream *s) { return copy(s, to, from, n); }
int cuMemcpyPeerAsync(ptr to, void *tc, ptr from, void *fc, size_t n, stream *s) { return copy(s, to, from, n); }
int cuMemcpyBatchAsync(ptr *to, ptr *from, size_t *n, size_t count, void *attrs, size_t *at, size_t nattrs, size_t *failed, stream *s) {
	if (!s || !nattrs) return INVALID; // as a driver: not on the NULL stream
	int r = OK;
	for (size_t i = 0; i < count && !r; i++) r = copy(s, to[i], from[i], n[i]);
	return r;
}

// --- one kernel: skep_spin(nanoseconds) --------------------------------------------------

int cuModuleLoadData(void **m, const void *image) { return *m = &mu, strstr(image, "skep_spin") ? OK : 200; }
int cuModuleUnload(void *m) { return OK; }
int cuModuleGetFunction(void **f, void *m, const char *name) { return *f = &mu, strcmp(name, "skep_spin") ? 500 : OK; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s, void **params, void **extra) {
	IN;
	u64 ns = *(u64 *)params[0];
	return out(queue(s, (op){.kind = SPIN, .idle = ns > 64000 ? 64 : ns / 1000}));
}

// --- for tests -------------------------------------------------------------------------

void skep_fake_seed(u64 seed) { pthread_mutex_lock(&mu); rng = seed * 0x9E3779B97F4A7C15ull | 1; for (int i = 0; i < 8; i++) rnd(1); link_idle = seed % 2 ? 200 : 6; out(0); }
void skep_fake_fail_alloc(int d, int nth) { pthread_mutex_lock(&mu); devices[d].fail_at = devices[d].allocs + nth; out(0); }
void skep_fake_fail_pin(int d, int nth) { pthread_mutex_lock(&mu); devices[d].host_fail_at = devices[d].host_allocs + nth; out(0); }
void skep_fake_fail_copy(int d, int nth, int code) { pthread_mutex_lock(&mu); devices[d].copy_fail_at = devices[d].copies + nth, devices[d].copy_code = code; out(0); }
void skep_fake_fail_events(int d, int code) { pthread_mutex_lock(&mu); devices[d].event_code = code; out(0); } // 0: no more
void skep_fake_fail(int d, int code) { pthread_mutex_lock(&mu); fail(d, code); out(0); }
void skep_fake_flip(int d) { pthread_mutex_lock(&mu); devices[d].flip = 1; out(0); }
void skep_fake_hang(int d) {
	pthread_mutex_lock(&mu);
	for (stream *s = streams; s; s = s->next) s->hung |= s->dev == d;
	out(0);
}
void skep_fake_revoke(ptr p, int touches) {
	pthread_mutex_lock(&mu);
	mem *m = find(p, 0);
	if (m) m->revoking = 1, m->touches = touches;
	out(0);
}

// skep_fake_reset ends all there is, and says how many things had not been given back: 0 when
// a device failed, because nothing can be given back to one.
int skep_fake_reset(void) {
	pthread_mutex_lock(&mu);
	int left = nevents, failed = 0;
	for (; streams; left++) {
		stream *s = streams;
		drop(s);
		streams = s->next;
		free(s);
	}
	for (; mems; left++) {
		if (mems->handle) unref(mems->handle);
		forget(mems);
	}
	for (; pins; left++) unpin(pins->at, pins->registered);
	for (int d = 0; d < DEVICES; d++) {
		left += devices[d].retained;
		failed |= devices[d].failed;
		memset(&devices[d], 0, sizeof devices[d]);
	}
	nevents = 0;
	return out(failed ? 0 : left);
}
