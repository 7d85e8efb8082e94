/* The CUDA driver: devices, contexts, plain memory, modules and kernels. */
#define _GNU_SOURCE
#include "abi.h"
#include "emu.h"
#include "launches.h"
#include "values.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult; /* the numbers of cudaError_t */
typedef int CUdevice;
typedef void *CUcontext;
typedef uint64_t CUdeviceptr;
enum { NOT_FOUND = 500 };

static char contexts[EMU_MAX_DEVICES];
static __thread CUcontext current;
static int here(void) { return emu_physical(*emu_current()); }

CUresult cuInit(unsigned flags) {
    (void)flags;
    int failure = emu_failure("cuInit");
    return failure ? failure : emu_visible_count() ? cudaSuccess : cudaErrorNoDevice;
}
CUresult cuDriverGetVersion(int *v) { *v = CUDA_VERSION; return cudaSuccess; }
CUresult cuDeviceGetCount(int *n) { *n = emu_visible_count(); return cudaSuccess; }
CUresult cuDeviceGet(CUdevice *d, int ordinal) {
    if (emu_physical(ordinal) < 0) return cudaErrorInvalidDevice;
    *d = ordinal;
    return cudaSuccess;
}
CUresult cuDeviceGetName(char *out, int n, CUdevice d) {
    (void)d;
    snprintf(out, (size_t)n, "%s", emu_the_card()->name);
    return cudaSuccess;
}
CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice d) {
    (void)d;
    *n = emu_the_card()->total_bytes;
    return cudaSuccess;
}
CUresult cuDeviceGetUuid(void *uuid, CUdevice d) { emu_uuid(emu_physical(d), uuid); return cudaSuccess; }
CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice d) { return cuDeviceGetUuid(uuid, d); }
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d) {
    *value = emu_attribute(emu_physical(d), attribute);
    return cudaSuccess;
}
CUresult cuDeviceGetPCIBusId(char *out, int n, CUdevice d) {
    snprintf(out, (size_t)n, "0000:%02X:00.0", emu_physical(d) + 1);
    return cudaSuccess;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
    if (emu_physical(d) < 0) return cudaErrorInvalidDevice;
    emu_context(emu_physical(d));
    *c = &contexts[d];
    return cudaSuccess;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
    if (flags) *flags = 0;
    if (active) *active = emu_has_context(emu_physical(d));
    return cudaSuccess;
}
CUresult cuCtxGetCurrent(CUcontext *c) {
    *c = current ? current : emu_has_context(here()) ? &contexts[*emu_current()] : NULL;
    return cudaSuccess;
}
CUresult cuCtxSetCurrent(CUcontext c) {
    current = c;
    if (c) *emu_current() = (int)((char *)c - contexts);
    return cudaSuccess;
}
CUresult cuCtxGetDevice(CUdevice *d) { *d = *emu_current(); return cudaSuccess; }
CUresult cuCtxGetLimit(size_t *value, int limit) {
    *value = limit == 0 ? 1024 : 8 * MIB;
    return cudaSuccess;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (here() < 0) return cudaErrorNoDevice;
    uint64_t used, all = emu_the_card()->total_bytes;
    emu_usage(here(), &used, NULL);
    *free_bytes = used < all ? all - used : 0, *total = all;
    return cudaSuccess;
}
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
    uint64_t at;
    if (here() < 0) return cudaErrorNoDevice;
    emu_request_from(NULL, 0);
    if (emu_alloc(here(), n, &at)) return cudaErrorMemoryAllocation;
    *p = at;
    return cudaSuccess;
}
CUresult cuMemFree_v2(CUdeviceptr p) { return emu_free(p) ? cudaErrorInvalidValue : cudaSuccess; }
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *n, CUdeviceptr p) {
    emu_block b;
    if (!emu_lookup(p, &b)) return NOT_FOUND;
    if (base) *base = b.base;
    if (n) *n = b.size;
    return cudaSuccess;
}
static void copied(size_t n, int what) {
    if (emu_noting && n) emu_note(&(emu_record){.kind = EMU_COPY, .what = (uint16_t)what, .of = {(int64_t)n}}, NULL);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) { copied(n, EMU_TO_DEVICE); emu_values_write(to, from, n); return cudaSuccess; }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { copied(n, EMU_TO_HOST); emu_values_read(to, from, n); return cudaSuccess; }
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { copied(n, EMU_WITHIN); emu_values_move(to, from, n); return cudaSuccess; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, void *s) { (void)s; return cuMemcpyHtoD_v2(to, from, n); }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, void *s) { (void)s; return cuMemcpyDtoH_v2(to, from, n); }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, void *s) { (void)s; return cuMemcpyDtoD_v2(to, from, n); }
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t n) { emu_values_fill(to, byte, n); return cudaSuccess; }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t n, void *s) { (void)s; return cuMemsetD8_v2(to, byte, n); }

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr p) {
    emu_block b;
    if (!emu_lookup(p, &b)) return cudaErrorInvalidValue;
    switch (attribute) {
    case 1: *(void **)value = NULL; break;                                      /* CONTEXT */
    case 2: *(unsigned *)value = b.kind == EMU_HOST ? 1 : 2; break;             /* MEMORY_TYPE */
    case 3: *(CUdeviceptr *)value = p; break;                                   /* DEVICE_POINTER */
    case 4: *(void **)value = b.kind == EMU_HOST || b.kind == EMU_MANAGED ? (void *)p : NULL; break;
    case 7: *(unsigned long long *)value = b.base; break;                       /* BUFFER_ID */
    case 8: *(unsigned *)value = b.kind == EMU_MANAGED; break;                  /* IS_MANAGED */
    case 9: *(int *)value = emu_visible(b.device); break;                       /* DEVICE_ORDINAL */
    case 11: *(CUdeviceptr *)value = b.base; break;                             /* RANGE_START_ADDR */
    case 12: *(size_t *)value = b.size; break;                                  /* RANGE_SIZE */
    default: *(unsigned *)value = 0;
    }
    return cudaSuccess;
}
CUresult cuPointerGetAttributes(unsigned n, int *attributes, void **values, CUdeviceptr p) {
    for (unsigned i = 0; i < n; i++) {
        CUresult code = cuPointerGetAttribute(values[i], attributes[i], p);
        if (code) return code;
    }
    return cudaSuccess;
}

/* --- modules and kernels --- */

CUresult cuModuleLoadData(void **module, const void *image) { (void)image; *module = calloc(1, 64); return cudaSuccess; }
CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned n, void *options, void **values) {
    (void)n, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(void **module, const char *file) { return cuModuleLoadData(module, file); }
CUresult cuModuleGetFunction(void **f, void *module, const char *name) { *f = emu_noting ? emu_named_kernel(name) : module; return cudaSuccess; }
CUresult cuLibraryLoadData(void **library, const void *code, void *jo, void **jv, unsigned nj, void *lo, void **lv, unsigned nl) {
    (void)code, (void)jo, (void)jv, (void)nj, (void)lo, (void)lv, (void)nl;
    *library = calloc(1, 64);
    return cudaSuccess;
}
CUresult cuLibraryGetKernel(void **kernel, void *library, const char *name) { *kernel = emu_noting ? emu_named_kernel(name) : library; return cudaSuccess; }
CUresult cuLibraryGetModule(void **module, void *library) { *module = library; return cudaSuccess; }
CUresult cuKernelGetFunction(void **f, void *kernel) { *f = kernel; return cudaSuccess; }
CUresult cuFuncGetAttribute(int *value, int attribute, void *f) {
    (void)f;
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads a block, registers */
    return cudaSuccess;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, size_t shared) {
    (void)f, (void)shared;
    int fit = threads > 0 ? emu_the_card()->threads_per_multiprocessor / threads : 1;
    *n = fit > 0 ? fit : 1;
    return cudaSuccess;
}
CUresult cuOccupancyMaxActiveClusters(int *n, void *f, void *config) {
    (void)f, (void)config;
    *n = emu_the_card()->multiprocessors;
    return cudaSuccess;
}
static CUresult launched(const void *f, const unsigned grid[3], const unsigned block[3], const void *s) {
    int failure = emu_failure("cuLaunchKernel");
    emu_values_holds(0);
    if (emu_noting && !failure) emu_note_kernel(f, grid, block, s);
    return failure;
}
CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *s, void **args, void **extra) {
    (void)shared, (void)args, (void)extra;
    return launched(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, s);
}
CUresult cuLaunchKernelEx(void *given, void *f, void **args, void **extra) {
    (void)args, (void)extra;
    const struct { unsigned grid[3], block[3], shared; void *stream; } *config = given; /* begins so */
    return launched(f, config->grid, config->block, config->stream);
}
CUresult cuStreamCreate(void **s, unsigned flags) { (void)flags; *s = calloc(1, 64); return cudaSuccess; }
CUresult cuEventCreate(void **e, unsigned flags) { (void)flags; *e = calloc(1, 64); return cudaSuccess; }

const char *cudaGetErrorString(int code);
CUresult cuGetErrorString(CUresult code, const char **text) {
    static const char *(*names)(int);
    if (!names) names = (const char *(*)(int))dlsym(RTLD_DEFAULT, "cudaGetErrorString");
    *text = names ? names(code) : code == 2 ? "out of memory" : code ? "unknown error" : "no error";
    return cudaSuccess;
}
CUresult cuGetErrorName(CUresult code, const char **text) {
    *text = code == 0 ? "CUDA_SUCCESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_UNKNOWN";
    return cudaSuccess;
}
CUresult cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    char versioned[128];
    static void *own;
    if (!own) own = dlopen("libcuda.so.1", RTLD_NOW);
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *f = dlsym(own, versioned);
    if (!*f) *f = dlsym(own, name);
    if (status) *status = *f ? 0 : 1;
    return *f ? cudaSuccess : NOT_FOUND;
}
CUresult cuGetProcAddress(const char *name, void **f, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, f, version, flags, NULL);
}
