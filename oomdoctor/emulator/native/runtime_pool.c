/* The CUDA runtime: cudaMallocAsync and its pools. One pool a device, which keeps nothing: what the
 * driver keeps back of freed memory is not published, so reserved here is what is used. */
#include "abi.h"
#include "emu.h"
#include "runtime.h"
#include <pthread.h>

cudaError_t cudaMalloc(void **out, size_t size);
cudaError_t cudaFree(void *p);

static struct { uint64_t used, high, threshold; } pools[EMU_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void count(int device, uint64_t size, int sign) {
    pthread_mutex_lock(&lock);
    pools[device].used += sign > 0 ? size : -size;
    if (pools[device].used > pools[device].high) pools[device].high = pools[device].used;
    pthread_mutex_unlock(&lock);
}
cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t s) {
    (void)s;
    MAY_FAIL("cudaMallocAsync");
    emu_block b;
    cudaError_t code = cudaMalloc(out, size); /* asked from here, so not as torch asks twice */
    if (!code && emu_lookup((uint64_t)*out, &b)) count(b.device, b.size, 1);
    return code;
}
cudaError_t cudaMallocFromPoolAsync(void **out, size_t size, void *pool, cudaStream_t s) {
    (void)pool;
    return cudaMallocAsync(out, size, s);
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
    (void)s;
    emu_block b;
    if (emu_lookup((uint64_t)p, &b)) count(b.device, b.size, -1);
    return cudaFree(p);
}
cudaError_t cudaDeviceGetDefaultMemPool(void **pool, int d) {
    if (emu_physical(d) < 0) return emu_fail(cudaErrorInvalidDevice);
    *pool = &pools[emu_physical(d)];
    return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(void **pool, int d) { return cudaDeviceGetDefaultMemPool(pool, d); }

static int index_of(void *pool) { return (int)((__typeof__(&pools[0]))pool - pools); }
enum { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH }; /* cudaMemPoolAttr */
cudaError_t cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    int device = index_of(pool);
    if (device < 0 || device >= EMU_MAX_DEVICES) return emu_fail(cudaErrorInvalidValue);
    if (attribute < THRESHOLD) *(int *)value = 1;
    else if (attribute == THRESHOLD) *(uint64_t *)value = pools[device].threshold;
    else if (attribute == RESERVED || attribute == USED) *(uint64_t *)value = pools[device].used;
    else *(uint64_t *)value = pools[device].high;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
    int device = index_of(pool);
    if (device < 0 || device >= EMU_MAX_DEVICES) return emu_fail(cudaErrorInvalidValue);
    if (attribute == THRESHOLD) pools[device].threshold = *(uint64_t *)value;
    if (attribute == RESERVED_HIGH || attribute == USED_HIGH) pools[device].high = pools[device].used;
    return cudaSuccess;
}
