// What the parts of the fake driver share: memory.c and fakecuda.c. Nothing of it is seen
// from outside the library.
#ifndef SKEP_FAKE_H
#define SKEP_FAKE_H
#include <stdint.h>
#include <stddef.h>

typedef unsigned long long ptr;
typedef uint64_t u64;

enum { OK = 0, INVALID = 1, NOMEM = 2, NODEVICE = 100, BADDEVICE = 101, BADCONTEXT = 201, BADHANDLE = 400,
	NOTREADY = 600, ILLEGAL = 700, PEERTWICE = 704, NOTSUPPORTED = 801 };

#define GRANULE ((size_t)2 << 20)
#define TAG ((ptr)1 << 62)
#define DEVICES 16
#define HOST(p) ((char *)(uintptr_t)((p) & ~TAG))

typedef struct mem { // a range of device addresses
	struct mem *next;
	ptr at;
	size_t n;
	int dev, fd, reserved, revoking, touches; // revoking: other devices may touch it so often
	unsigned access; // devices that may use it
	struct handle *handle;
} mem;

typedef struct handle { // physical memory
	size_t n;
	int dev, fd, refs, imported;
} handle;

typedef struct pin { // pinned host memory
	struct pin *next;
	char *at;
	size_t n;
	int registered;
} pin;

typedef struct event {
	u64 asked, done;
	int dev;
} event;

enum { COPY, WAIT, WRITE, RECORD, WAITEVENT, CALL, SPIN };

typedef struct op {
	struct op *next;
	int kind, idle, phase;
	ptr to, from; // without TAG: pinned host memory
	size_t n, cut;
	char *held;
	ptr addr;
	u64 value;
	event *ev;
	void (*call)(void *);
	void *arg;
} op;

typedef struct stream {
	struct stream *next;
	int dev, hung;
	op *head, **tail;
} stream;

struct device {
	size_t used;
	int retained, failed, allocs, fail_at, host_allocs, host_fail_at, peers, flip; // peers: bits
	int copies, copy_fail_at, copy_code, event_code;
};

#pragma GCC visibility push(hidden)
extern struct device devices[DEVICES];
extern mem *mems;
extern pin *pins;
extern int ndevices;
extern size_t memory; // bytes of each device
extern __thread int current; // the device of this thread's context, or -1

int in(void);
int out(int r);
mem *find(ptr p, size_t n);
void forget(mem *m);
void unref(handle *h);
int unpin(void *p, int registered);
#pragma GCC visibility pop

#define IN \
	do { \
		int in_ = in(); \
		if (in_) return out(in_); \
	} while (0)

#endif
