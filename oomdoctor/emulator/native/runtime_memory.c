/* The CUDA runtime: memory. */
#define _GNU_SOURCE
#include "abi.h"
#include "emu.h"
#include "launches.h"
#include "runtime.h"
#include "values.h"
#include <string.h>
#include <sys/mman.h>

cudaError_t cudaMalloc(void **out, size_t size) {
    NEED_DEVICE();
    MAY_FAIL("cudaMalloc");
    uint64_t at = 0;
    emu_context(emu_here());
    emu_request_from(__builtin_return_address(0), 0);
    if (size && emu_alloc(emu_here(), size, &at)) return emu_fail(cudaErrorMemoryAllocation);
    emu_request_at(at);
    emu_request_done();
    *out = (void *)at;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    NEED_DEVICE();
    MAY_FAIL("cudaFree");
    emu_context(emu_here());
    if (!p) return cudaSuccess;
    emu_block b;
    if (emu_lookup((uint64_t)p, &b) && b.kind == EMU_MANAGED) munmap(p, b.size);
    return emu_free((uint64_t)p) ? emu_fail(cudaErrorInvalidValue) : cudaSuccess;
}

/* Managed memory lives in host pages: as long as the host touches it, it takes no device memory. */
cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags) {
    (void)flags;
    NEED_DEVICE();
    emu_context(emu_here());
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return emu_fail(cudaErrorMemoryAllocation);
    emu_adopt((uint64_t)at, size, EMU_MANAGED, emu_here());
    *out = at;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    NEED_DEVICE();
    MAY_FAIL("cudaMemGetInfo");
    emu_context(emu_here());
    uint64_t used, all = emu_the_card()->total_bytes;
    emu_request_done(); /* torch asks before it raises an error */
    emu_usage(emu_here(), &used, NULL);
    if (free_bytes) *free_bytes = used < all ? all - used : 0;
    if (total) *total = all;
    return cudaSuccess;
}

/* --- host memory --- */

static cudaError_t host_alloc(void **out, size_t size) {
    size_t bytes = size ? size : 1;
    /* Not reserved: what is pinned and never touched takes no memory of this machine. */
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return emu_fail(cudaErrorMemoryAllocation);
    emu_adopt((uint64_t)at, bytes, EMU_HOST, *emu_current());
    *out = at;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
    (void)flags;
    MAY_FAIL("cudaHostAlloc");
    return host_alloc(out, size);
}
cudaError_t cudaMallocHost(void **out, size_t size) { return host_alloc(out, size); }
cudaError_t cudaFreeHost(void *p) {
    emu_block b;
    if (!p) return cudaSuccess;
    if (!emu_lookup((uint64_t)p, &b)) return emu_fail(cudaErrorInvalidValue);
    emu_free((uint64_t)p);
    munmap(p, b.size);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t size, unsigned flags) {
    (void)flags;
    emu_adopt((uint64_t)p, size, EMU_HOST, *emu_current());
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) {
    return emu_free((uint64_t)p) ? emu_fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned flags) {
    (void)flags;
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
    emu_block b;
    memset(a, 0, sizeof *a);
    a->device = -2;
    if (!emu_lookup((uint64_t)p, &b)) {
        a->type = cudaMemoryTypeUnregistered;
        return cudaSuccess;
    }
    a->type = b.kind == EMU_HOST ? cudaMemoryTypeHost
              : b.kind == EMU_MANAGED ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
    a->device = b.kind == EMU_HOST ? b.device : emu_visible(b.device);
    a->devicePointer = (void *)p;
    if (b.kind == EMU_HOST || b.kind == EMU_MANAGED) a->hostPointer = (void *)p;
    return cudaSuccess;
}

/* --- copies: values.c knows what is worth keeping --- */

static void copy(void *to, const void *from, size_t n, cudaStream_t s) {
    int to_device = emu_is_device((uint64_t)to), from_device = emu_is_device((uint64_t)from);
    if (!n) return;
    if (emu_noting) {
        int what = to_device ? (from_device ? EMU_WITHIN : EMU_TO_DEVICE) : from_device ? EMU_TO_HOST : EMU_ON_HOST;
        emu_note(&(emu_record){.kind = EMU_COPY, .what = (uint16_t)what, .stream = (uint64_t)s, .of = {(int64_t)n}}, NULL);
    }
    if (to_device && from_device) emu_values_move((uint64_t)to, (uint64_t)from, n);
    else if (to_device) emu_values_write((uint64_t)to, from, n);
    else if (from_device) emu_values_read(to, (uint64_t)from, n);
    else memmove(to, from, n);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, int kind) {
    (void)kind;
    MAY_FAIL("cudaMemcpy");
    copy(to, from, n, NULL);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, cudaStream_t s) {
    (void)kind;
    MAY_FAIL("cudaMemcpyAsync");
    copy(to, from, n, s);
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t n) {
    (void)to_device, (void)from_device;
    return cudaMemcpy(to, from, n, 0);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n, cudaStream_t s) {
    (void)to_device, (void)from_device;
    return cudaMemcpyAsync(to, from, n, 0, s);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, int kind, cudaStream_t s) {
    (void)kind;
    MAY_FAIL("cudaMemcpy2DAsync");
    for (size_t i = 0; i < height; i++)
        copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, s);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int byte, size_t n) {
    MAY_FAIL("cudaMemset");
    if (emu_noting && n) emu_note(&(emu_record){.kind = EMU_FILL, .of = {(int64_t)n}}, NULL);
    if (emu_is_device((uint64_t)p)) emu_values_fill((uint64_t)p, byte, n);
    else memset(p, byte, n);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s) {
    (void)s;
    return cudaMemset(p, byte, n);
}
cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
    (void)symbol;
    NEED_DEVICE();
    *out = (void *)emu_reserve(emu_here(), 4096, 0);
    return cudaSuccess;
}

/* --- memory of another process: its addresses are new, its bytes are counted once --- */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) {
    emu_block b;
    memset(handle, 0, sizeof *handle);
    if (!emu_lookup((uint64_t)p, &b)) return emu_fail(cudaErrorInvalidValue);
    memcpy(handle->bytes, &b.size, sizeof b.size);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    (void)flags;
    uint64_t size;
    NEED_DEVICE();
    memcpy(&size, handle.bytes, sizeof size);
    *out = (void *)emu_reserve(emu_here(), size, 0);
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *p) { emu_free((uint64_t)p); return cudaSuccess; }
