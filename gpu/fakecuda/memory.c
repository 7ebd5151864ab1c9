// Memory of the fake driver: of devices, of other processes, and pinned memory of the host.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

// --- device memory ---------------------------------------------------------------------

static int physical(size_t n) {
	int fd = memfd_create("fake GPU memory", MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, n)) close(fd), fd = -1;
	return fd;
}

static mem *range(char *at, size_t n, int dev, int fd) {
	mem *m = calloc(1, sizeof *m);
	m->at = (ptr)(uintptr_t)at | TAG, m->n = n, m->dev = dev, m->fd = fd, m->next = mems;
	return mems = m;
}

void forget(mem *m) {
	mem **i = &mems;
	while (*i != m) i = &(*i)->next;
	*i = m->next;
	munmap(HOST(m->at), m->n);
	if (m->fd >= 0) close(m->fd);
	free(m);
}

// room says whether n more bytes may be allocated now.
static int room(struct device *d, size_t n) {
	return ++d->allocs != d->fail_at && n <= memory - d->used;
}

int cuMemAlloc_v2(ptr *p, size_t n) {
	IN;
	struct device *d = &devices[current];
	if (!n) return out(INVALID);
	if (!room(d, n)) return out(NOMEM);
	int fd = physical(n);
	char *at = fd < 0 ? MAP_FAILED : mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) return out(NOMEM);
	memset(at, 0xA5, n);
	mem *m = range(at, n, current, fd);
	m->access = 1u << current;
	d->used += n;
	*p = m->at;
	return out(OK);
}

int cuMemFree_v2(ptr p) {
	IN;
	mem *m = find(p, 0);
	if (!m || m->at != p || m->handle || m->reserved) return out(INVALID);
	devices[m->dev].used -= m->n;
	memset(HOST(m->at), 0xA5, m->n);
	forget(m);
	return out(OK);
}

struct prop { int type, handles, location, id; };
struct access { int location, id, flags; };

int cuMemGetAllocationGranularity(size_t *n, const struct prop *p, int option) { return *n = GRANULE, OK; }

int cuMemCreate(handle **h, size_t n, const struct prop *p, u64 flags) {
	IN;
	if (!n || n % GRANULE || p->type != 1 || p->location != 1 || p->id < 0 || p->id >= ndevices) return out(INVALID);
	struct device *d = &devices[p->id];
	int fd = room(d, n) ? physical(n) : -1;
	if (fd < 0) return out(NOMEM);
	*h = calloc(1, sizeof **h);
	**h = (handle){n, p->id, fd, 1, 0};
	d->used += n;
	return out(OK);
}

void unref(handle *h) {
	if (--h->refs) return;
	if (!h->imported) devices[h->dev].used -= h->n;
	close(h->fd);
	free(h);
}

int cuMemRelease(handle *h) { IN; unref(h); return out(OK); }

int cuMemAddressReserve(ptr *p, size_t n, size_t align, ptr hint, u64 flags) {
	IN;
	if (!n || n % GRANULE) return out(INVALID);
	char *at = mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) return out(NOMEM);
	mem *m = range(at, n, current, -1);
	m->reserved = 1;
	*p = m->at;
	return out(OK);
}

// exact finds a reserved range; it is mapped and unmapped as a whole here.
static mem *exact(ptr p, size_t n) {
	mem *m = find(p, n);
	return m && m->at == p && m->n == n ? m : 0;
}

int cuMemMap(ptr p, size_t n, size_t off, handle *h, u64 flags) {
	IN;
	mem *m = exact(p, n);
	if (!m || !m->reserved || off || n > h->n) return out(INVALID);
	if (mmap(HOST(p), n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, 0) == MAP_FAILED) return out(NOMEM);
	m->reserved = 0, m->handle = h, m->dev = h->dev, m->access = 0;
	h->refs++;
	return out(OK);
}

int cuMemSetAccess(ptr p, size_t n, const struct access *a, size_t count) {
	IN;
	mem *m = exact(p, n);
	if (!m || !m->handle) return out(INVALID);
	for (size_t i = 0; i < count; i++) {
		if (a[i].location != 1 || a[i].id < 0 || a[i].id >= ndevices) return out(INVALID);
		m->access &= ~(1u << a[i].id);
		if (a[i].flags == 3) m->access |= 1u << a[i].id;
	}
	return out(OK);
}

int cuMemUnmap(ptr p, size_t n) {
	IN;
	mem *m = exact(p, n);
	if (!m || !m->handle) return out(INVALID);
	mmap(HOST(p), n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	unref(m->handle);
	m->handle = 0, m->reserved = 1;
	return out(OK);
}

int cuMemAddressFree(ptr p, size_t n) {
	IN;
	mem *m = exact(p, n);
	if (!m || !m->reserved) return out(INVALID);
	forget(m);
	return out(OK);
}

// --- memory of other processes ---------------------------------------------------------

int cuMemExportToShareableHandle(void *to, handle *h, int type, u64 flags) {
	IN;
	if (type != 1) return out(NOTSUPPORTED);
	*(int *)to = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
	return out(*(int *)to < 0 ? NOMEM : OK);
}

int cuMemImportFromShareableHandle(handle **h, void *from, int type) {
	IN;
	char link[64], name[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", (int)(intptr_t)from);
	ssize_t n = readlink(link, name, sizeof name - 1);
	name[n < 0 ? 0 : n] = 0;
	struct stat st;
	if (!strstr(name, "fake GPU memory") || fstat((int)(intptr_t)from, &st)) return out(INVALID);
	int fd = fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0);
	if (fd < 0) return out(NOMEM);
	*h = calloc(1, sizeof **h);
	**h = (handle){st.st_size, current, fd, 1, 1};
	return out(OK);
}

struct ipc { char reserved[64]; };

int cuIpcGetMemHandle(struct ipc *h, ptr p) {
	IN;
	mem *m = find(p, 0);
	if (!m || m->fd < 0) return out(INVALID);
	memset(h, 0, sizeof *h);
	snprintf(h->reserved, sizeof h->reserved, "/proc/%d/fd/%d", getpid(), m->fd);
	return out(OK);
}

int cuIpcOpenMemHandle_v2(ptr *p, struct ipc h, unsigned flags) {
	IN;
	h.reserved[63] = 0;
	struct stat st;
	int fd = strncmp(h.reserved, "/proc/", 6) ? -1 : open(h.reserved, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) || !st.st_size) return fd < 0 ? 0 : close(fd), out(BADHANDLE);
	char *at = mmap(0, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) return close(fd), out(NOMEM);
	mem *m = range(at, st.st_size, current, fd);
	m->access = 1u << current;
	*p = m->at;
	return out(OK);
}

int cuIpcCloseMemHandle(ptr p) {
	IN;
	mem *m = find(p, 0);
	if (!m || m->at != p) return out(INVALID);
	forget(m);
	return out(OK);
}

// --- pinned host memory ----------------------------------------------------------------

static void pinit(void *p, size_t n, int registered) {
	pin *i = malloc(sizeof *i);
	*i = (pin){pins, p, n, registered};
	pins = i;
}

int cuMemHostAlloc(void **p, size_t n, unsigned flags) {
	IN;
	struct device *d = &devices[current];
	if (++d->host_allocs == d->host_fail_at) return out(NOMEM);
	*p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!n || *p == MAP_FAILED) return out(NOMEM);
	pinit(*p, n, 0);
	return out(OK);
}

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
	IN;
	if (!p || !n) return out(INVALID);
	pinit(p, n, 1);
	return out(OK);
}

int unpin(void *p, int registered) {
	for (pin **i = &pins; *i; i = &(*i)->next) {
		pin *k = *i;
		if (k->at != p || k->registered != registered) continue;
		*i = k->next;
		if (!registered) munmap(p, k->n);
		free(k);
		return OK;
	}
	return INVALID;
}

int cuMemFreeHost(void *p) { IN; return out(unpin(p, 0)); }
int cuMemHostUnregister(void *p) { IN; return out(unpin(p, 1)); }
int cuMemHostGetDevicePointer_v2(ptr *d, void *p, unsigned flags) { return *d = (ptr)(uintptr_t)p, OK; }
