/* The CUDA runtime: kernels. They are known by name and never run. */
#define _GNU_SOURCE
#include "abi.h"
#include "emu.h"
#include "launches.h"
#include "runtime.h"
#include "values.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { dim3 grid, block; size_t shared; cudaStream_t s; } config;
static __thread config pushed[8];
static __thread int n_pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *s) {
    if (n_pushed < 8) pushed[n_pushed++] = (config){grid, block, shared, s};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *s) {
    if (!n_pushed) return emu_fail(cudaErrorInvalidConfiguration);
    config c = pushed[--n_pushed];
    *grid = c.grid, *block = c.block, *shared = c.shared, *(cudaStream_t *)s = c.s;
    return cudaSuccess;
}

/* Kernels that make a truth value, hashed by address: a stopgap while no values are computed. */
enum { NO_TRUTH, ALL, EQUALITY };
#define TRUTH_SLOTS 8192
typedef struct { const void *host; int kind; } truth;
static truth truths[TRUTH_SLOTS];
static truth *truth_of(const void *host) {
    size_t at = ((uintptr_t)host >> 4) % TRUTH_SLOTS;
    while (truths[at].host && truths[at].host != host) at = (at + 1) % TRUTH_SLOTS;
    return &truths[at];
}

void **__cudaRegisterFatBinary(void *binary) {
    void **handle = calloc(8, sizeof *handle);
    handle[0] = binary;
    return handle;
}
void __cudaRegisterFatBinaryEnd(void **h) { (void)h; }
void __cudaUnregisterFatBinary(void **h) { (void)h; }
char __cudaInitModule(void **h) { (void)h; return 1; }
void __cudaRegisterVar(void **h, char *a, char *b, const char *c, int d, size_t e, int f, int g) {
    (void)h, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g;
}
void __cudaRegisterManagedVar(void **h, void **a, char *b, const char *c, int d, size_t e, int f, int g) {
    (void)h, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g;
}
void __cudaRegisterFunction(void **h, const char *host, char *function, const char *name, int limit,
                            void *t, void *b, void *bd, void *gd, int *w) {
    (void)h, (void)function, (void)limit, (void)t, (void)b, (void)bd, (void)gd, (void)w;
    if (strstr(name, "and_kernel_cuda")) *truth_of(host) = (truth){host, ALL};
    else if (strstr(name, "CompareEqFunctor")) *truth_of(host) = (truth){host, EQUALITY};
    if (emu_names_kernels()) emu_name_kernel(host, name);
}
cudaError_t __cudaGetKernel(void **kernel, const void *host) { *kernel = (void *)host; return cudaSuccess; }
cudaError_t cudaGetKernel(void **kernel, const void *host) { return __cudaGetKernel(kernel, host); }

static cudaError_t launched(const void *host, dim3 grid, dim3 block, void **args, cudaStream_t s) {
    MAY_FAIL("cudaLaunchKernel");
    NEED_DEVICE();
    if (!emu_kernel_architecture()) return emu_fail(cudaErrorNoKernelImageForDevice);
    truth *t = truth_of(host);
    /* CompareEqFunctor starts with its operator, 0 for == and 1 for !=; it follows the count. */
    emu_values_holds(t->host && (t->kind == ALL || (args && *(int *)args[1] == 0)));
    if (emu_noting) emu_note_kernel(host, &grid.x, &block.x, s);
    if (emu_trace() >= 3) {
        const char *name = emu_kernel_name(host);
        fprintf(stderr, "emulated: kernel %s\n", name ? name : "?");
    }
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void *kernel, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s) {
    (void)shared;
    return launched(kernel, g, b, args, s);
}
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s) {
    (void)shared;
    return launched(f, g, b, args, s);
}
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s) {
    (void)shared;
    return launched(f, g, b, args, s);
}
cudaError_t cudaLaunchKernelExC(const void *given, const void *f, void **args) {
    const config *c = given; /* begins as cudaLaunchConfig_t does */
    return launched(f, c->grid, c->block, args, c->s);
}

/* CUB and Thrust choose by the architecture of the kernel that torch was built with. */
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *f) {
    (void)f;
    int architecture = emu_kernel_architecture();
    if (!architecture) return emu_fail(cudaErrorNoKernelImageForDevice);
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->binaryVersion = a->ptxVersion = architecture;
    a->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int threads, size_t shared) {
    (void)f;
    const emu_card *card = emu_the_card();
    int by_threads = card->threads_per_multiprocessor / (threads > 0 ? (threads + 31) / 32 * 32 : 32);
    int by_shared = (int)(card->shared_per_multiprocessor / (shared + 1024));
    *n = by_threads < by_shared ? by_threads : by_shared;
    if (*n > card->blocks_per_multiprocessor) *n = card->blocks_per_multiprocessor;
    if (*n < 1) *n = shared > card->shared_per_block_optin ? 0 : 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int threads, size_t shared, unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, threads, shared);
}

/* --- code that is loaded at run time, and the driver's functions by name --- */

cudaError_t cudaLibraryLoadData(void **library, const void *code, void *jo, void **jv, unsigned nj, void *lo, void **lv, unsigned nl) {
    (void)code, (void)jo, (void)jv, (void)nj, (void)lo, (void)lv, (void)nl;
    *library = calloc(1, 64);
    return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    *kernel = emu_noting ? emu_named_kernel(name) : library;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    char versioned[128];
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *f = driver ? dlsym(driver, versioned) : NULL;
    if (!*f && driver) *f = dlsym(driver, name);
    if (status) *status = *f ? 0 : 1; /* found, or no such symbol */
    return *f ? cudaSuccess : emu_fail(cudaErrorSymbolNotFound);
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **f, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, f, CUDA_VERSION, flags, status);
}
