/* The CUDA runtime: errors, versions, devices and their properties. */
#define _GNU_SOURCE
#include "abi.h"
#include "emu.h"
#include "runtime.h"
#include "values.h"
#include <stdio.h>
#include <string.h>

static __thread cudaError_t last_error;
cudaError_t emu_fail(cudaError_t code) { return last_error = code; }
int emu_here(void) { return emu_physical(*emu_current()); }

cudaError_t cudaGetLastError(void) {
    cudaError_t code = emu_sticky() ? emu_sticky() : last_error;
    last_error = cudaSuccess;
    return code;
}
cudaError_t cudaPeekAtLastError(void) { return emu_sticky() ? emu_sticky() : last_error; }

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {999, "cudaErrorUnknown", "unknown error"},
};
const char *cudaGetErrorString(cudaError_t code) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code) return ERRORS[i].text;
    return "unrecognized error code";
}
const char *cudaGetErrorName(cudaError_t code) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code) return ERRORS[i].name;
    return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int *v) { *v = CUDA_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDA_VERSION; return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int *n) {
    MAY_FAIL("cudaGetDeviceCount");
    *n = emu_visible_count();
    if (*n) emu_values_load();
    return *n ? cudaSuccess : emu_fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *d) {
    NEED_DEVICE();
    *d = *emu_current();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
    MAY_FAIL("cudaSetDevice");
    if (emu_physical(d) < 0) return emu_fail(cudaErrorInvalidDevice);
    *emu_current() = d;
    emu_context(emu_here()); /* since CUDA 12 */
    return cudaSuccess;
}
cudaError_t cudaInitDevice(int d, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    if (emu_physical(d) < 0) return emu_fail(cudaErrorInvalidDevice);
    emu_context(emu_physical(d));
    return cudaSuccess;
}
cudaError_t cudaDeviceReset(void) {
    NEED_DEVICE();
    emu_drop_context(emu_here());
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    MAY_FAIL("cudaDeviceSynchronize");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int d) {
    if (emu_physical(d) < 0) return emu_fail(cudaErrorInvalidDevice);
    *value = emu_attribute(emu_physical(d), attribute);
    return cudaSuccess;
}

static cudaError_t properties(char *p, int d) {
    int physical = emu_physical(d);
    if (physical < 0) return emu_fail(cudaErrorInvalidDevice);
    const emu_card *card = emu_the_card();
#define INT(offset, value) (*(int *)(p + (offset)) = (int)(value))
#define SIZE(offset, value) (*(size_t *)(p + (offset)) = (size_t)(value))
    memset(p, 0, PROP_BYTES);
    snprintf(p, 256, "%s", card->name);
    emu_uuid(physical, (unsigned char *)p + 256);
    SIZE(288, card->total_bytes);
    SIZE(296, 49152);                  /* sharedMemPerBlock */
    INT(304, 65536);                   /* regsPerBlock */
    INT(308, 32);                      /* warpSize */
    SIZE(312, 2147483647);             /* memPitch */
    INT(320, 1024);                    /* maxThreadsPerBlock */
    INT(324, 1024), INT(328, 1024), INT(332, 64);
    INT(336, 2147483647), INT(340, 65535), INT(344, 65535);
    SIZE(352, 65536);                  /* totalConstMem */
    INT(360, card->major), INT(364, card->minor);
    SIZE(368, 512), SIZE(376, 32);     /* textureAlignment, texturePitchAlignment */
#if CUDA_MAJOR < 13
    INT(348, 1700000);                 /* clockRate, kHz */
    INT(608, 1000000);                 /* memoryClockRate, kHz */
    INT(384, 1);                       /* deviceOverlap */
#endif
    INT(388 - PROP_SHIFT_A, card->multiprocessors);
    INT(400 - 2 * PROP_SHIFT_A, 1);    /* canMapHostMemory */
    INT(576 - PROP_SHIFT_B, 1);        /* concurrentKernels */
    INT(584 - PROP_SHIFT_B, physical + 1); /* pciBusID */
    INT(600 - PROP_SHIFT_B, 3);        /* asyncEngineCount */
    INT(604 - PROP_SHIFT_B, 1);        /* unifiedAddressing */
    INT(612 - PROP_SHIFT_C, card->bus_bits);
    INT(616 - PROP_SHIFT_C, card->l2_bytes);
    INT(620 - PROP_SHIFT_C, card->l2_bytes * 5 / 8); /* persistingL2CacheMaxSize */
    INT(624 - PROP_SHIFT_C, card->threads_per_multiprocessor);
    INT(628 - PROP_SHIFT_C, 1);        /* streamPrioritiesSupported */
    INT(632 - PROP_SHIFT_C, 1), INT(636 - PROP_SHIFT_C, 1); /* L1 caches */
    SIZE(640 - PROP_SHIFT_B, card->shared_per_multiprocessor);
    INT(648 - PROP_SHIFT_B, card->registers_per_multiprocessor);
    INT(652 - PROP_SHIFT_B, 1);        /* managedMemory */
    INT(676 - PROP_SHIFT_C, 1);        /* concurrentManagedAccess */
    INT(680 - PROP_SHIFT_C, 1);        /* computePreemptionSupported */
    INT(684 - PROP_SHIFT_C, 1);        /* canUseHostPointerForRegisteredMem */
    INT(688 - PROP_SHIFT_C, 1);        /* cooperativeLaunch */
    SIZE(696 - PROP_SHIFT_D, card->shared_per_block_optin);
    INT(712 - PROP_SHIFT_D, card->blocks_per_multiprocessor);
    SIZE(720 - PROP_SHIFT_D, card->major >= 8 ? 1024 : 0); /* reservedSharedMemPerBlock */
    INT(728 - PROP_SHIFT_D, 1);        /* hostRegisterSupported */
    INT(744 - PROP_SHIFT_D, 1);        /* memoryPoolsSupported */
    INT(772 - PROP_SHIFT_D, card->major >= 9); /* clusterLaunch */
    return cudaSuccess;
}
/* The suffix came with CUDA 12 and went with CUDA 13. */
cudaError_t cudaGetDeviceProperties(void *p, int d) { return properties(p, d); }
cudaError_t cudaGetDeviceProperties_v2(void *p, int d) { return properties(p, d); }

cudaError_t cudaDeviceGetPCIBusId(char *out, int n, int d) {
    if (emu_physical(d) < 0) return emu_fail(cudaErrorInvalidDevice);
    snprintf(out, (size_t)n, "0000:%02X:00.0", emu_physical(d) + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = a != b; return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t *value, int limit) {
    *value = limit == 0 ? 1024 : 8 * MIB; /* 0: the stack of a thread */
    return cudaSuccess;
}
