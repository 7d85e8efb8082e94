/* The CUDA driver: virtual memory management, on which expandable segments are built. Physical pieces
 * are counted; addresses are reserved. */
#include "abi.h"
#include "emu.h"
#include "values.h"
#include <pthread.h>
#include <stdlib.h>

typedef uint64_t CUdeviceptr;
/* CUmemAllocationProp: type, handle types, location type, location id, ... */
typedef struct { int type, handle_types, location_type, location_id; } allocation_properties;
typedef struct { uint64_t size; int device, uses; } piece;
typedef struct { CUdeviceptr at; piece *what; } mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mapping *maps; /* by address */
static size_t n_maps, cap_maps;

static size_t first_from(CUdeviceptr at) {
    size_t low = 0, high = n_maps;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (maps[middle].at < at) low = middle + 1;
        else high = middle;
    }
    return low;
}
static void drop(piece *p) {
    if (--p->uses) return;
    emu_uncharge(p->device, p->size);
    free(p);
}
int cuMemGetAllocationGranularity(size_t *n, const void *properties, int flags) {
    (void)properties, (void)flags;
    *n = 2 * MIB;
    return cudaSuccess;
}
int cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t align, CUdeviceptr hint, unsigned long long flags) {
    (void)hint, (void)flags;
    int device = emu_physical(*emu_current());
    if (device < 0) return cudaErrorNoDevice;
    *p = emu_reserve(device, n, align);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
int cuMemAddressFree(CUdeviceptr p, size_t n) {
    (void)n;
    return emu_free(p) ? cudaErrorInvalidValue : cudaSuccess;
}
int cuMemCreate(unsigned long long *handle, size_t n, const allocation_properties *properties, unsigned long long flags) {
    (void)flags;
    int device = emu_physical(properties->location_id), failure = emu_failure("cuMemCreate");
    if (failure) return failure;
    if (device < 0) return cudaErrorInvalidDevice;
    emu_request_from(__builtin_return_address(0), 1);
    if (emu_charge(device, n)) return cudaErrorMemoryAllocation;
    emu_request_made(n);
    piece *made = calloc(1, sizeof *made);
    *made = (piece){n, device, 1};
    *handle = (unsigned long long)(uintptr_t)made;
    return cudaSuccess;
}
int cuMemRelease(unsigned long long handle) {
    pthread_mutex_lock(&lock);
    drop((piece *)(uintptr_t)handle);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
int cuMemMap(CUdeviceptr at, size_t n, size_t offset, unsigned long long handle, unsigned long long flags) {
    (void)n, (void)offset, (void)flags;
    pthread_mutex_lock(&lock);
    if (n_maps == cap_maps) maps = realloc(maps, (cap_maps = cap_maps ? 2 * cap_maps : 1024) * sizeof *maps);
    size_t i = first_from(at);
    for (size_t j = n_maps++; j > i; j--) maps[j] = maps[j - 1];
    maps[i] = (mapping){at, (piece *)(uintptr_t)handle};
    maps[i].what->uses++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
int cuMemUnmap(CUdeviceptr at, size_t n) {
    pthread_mutex_lock(&lock);
    size_t first = first_from(at), end = first;
    while (end < n_maps && maps[end].at < at + n) drop(maps[end++].what);
    for (size_t i = end; i < n_maps; i++) maps[first + i - end] = maps[i];
    n_maps -= end - first;
    pthread_mutex_unlock(&lock);
    emu_values_drop(at, n);
    return cudaSuccess;
}
int cuMemSetAccess(CUdeviceptr at, size_t n, const void *access, size_t count) {
    (void)access, (void)count;
    emu_request_at(at);
    emu_request_done();
    return cudaSuccess;
}
int cuMemRetainAllocationHandle(unsigned long long *handle, void *at) {
    int code = cudaErrorInvalidValue;
    pthread_mutex_lock(&lock);
    size_t i = first_from((CUdeviceptr)at);
    if (i < n_maps && maps[i].at == (CUdeviceptr)at) {
        maps[i].what->uses++;
        *handle = (unsigned long long)(uintptr_t)maps[i].what;
        code = cudaSuccess;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
