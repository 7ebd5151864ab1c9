/* What libskep calls of NVIDIA's driver, found in the process that already has it: an engine on a
 * GPU. Results are the driver's; -1 where the process has no driver, or an older one without the
 * function. Each call is made in a context, and the thread's own is as before afterwards. */
#ifndef SKEP_CUDA_CALLS_H
#define SKEP_CUDA_CALLS_H
#include <stddef.h>
#include <stdint.h>

int skep_cuda_context(uint64_t stream, void **context);
int skep_cuda_pinned(void *context, size_t n, void **memory, void **event);
int skep_cuda_unpinned(void *context, void *memory, void *event);
int skep_cuda_copy(void *context, uint64_t stream, uint64_t to, const void *from, size_t n);
int skep_cuda_mark(void *context, uint64_t stream, void *event);
int skep_cuda_passed(void *context, void *event);
#endif
