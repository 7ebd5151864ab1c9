// What cu lacks of the driver, found by name when the program starts, so that a driver
// without it costs a feature and not the start. Results are the driver's, 801 (not
// supported) where it has no such function. Each call makes its context current.
#include <stddef.h>
#include <stdint.h>

#define SKEP_NOT_SUPPORTED 801

typedef struct { char reserved[64]; } skep_ipc;

// skep_stage is a copy through pinned memory: n bytes at from go to to (NULL: nowhere) when
// the stream calls, and then done is 1.
typedef struct {
	void *to, *from;
	size_t n;
	int done;
} skep_stage;

void skep_load(void);
int skep_simulated(void);
const char *skep_error(int code);

int skep_wait64(void *ctx, void *stream, uint64_t at, uint64_t v);
int skep_write64(void *ctx, void *stream, uint64_t at, uint64_t v);
int skep_host_func(void *ctx, void *stream, skep_stage *s);
int skep_query(void *ctx, void *stream);
int skep_copy_all(void *ctx, void *stream, uint64_t *to, uint64_t *from, size_t *n, size_t count);

int skep_host_alloc(void *ctx, size_t n, void **p, uint64_t *at);
int skep_host_free(void *ctx, void *p);
int skep_host_register(void *ctx, void *p, size_t n);
int skep_host_unregister(void *ctx, void *p);

int skep_create(void *ctx, int dev, size_t n, uint64_t *handle);
int skep_map(void *ctx, uint64_t handle, size_t n, uint64_t *at);
int skep_access(void *ctx, uint64_t at, size_t n, int dev);
int skep_unmap(void *ctx, uint64_t handle, uint64_t at, size_t n);
int skep_release(void *ctx, uint64_t handle);
int skep_export(void *ctx, uint64_t handle, int *fd);
int skep_import(void *ctx, int fd, uint64_t *handle);

int skep_ipc_get(void *ctx, uint64_t at, skep_ipc *h);
int skep_ipc_open(void *ctx, skep_ipc *h, uint64_t *at);
int skep_ipc_close(void *ctx, uint64_t at);

int skep_stage_done(skep_stage *s);
