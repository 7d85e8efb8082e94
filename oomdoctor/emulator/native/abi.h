/* What of CUDA's interface this needs: types, numbers and layouts, from the public documentation.
 * CUDA_MAJOR is that of the torch build; versions.h has the rest. */
#ifndef EMU_ABI_H
#define EMU_ABI_H
#include "versions.h"
#include <stddef.h>
#include <stdint.h>

typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct { unsigned x, y, z; } dim3;

enum { /* the driver's numbers are the same */
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorSymbolNotFound = 500,
    cudaErrorNotReady = 600,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
};
enum { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };

typedef struct {
    int type, device;
    void *devicePointer, *hostPointer;
#if CUDA_MAJOR >= 13
    long reserved[8];
#endif
} cudaPointerAttributes;

typedef struct {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA;
    int maxDynamicSharedSizeBytes, preferredShmemCarveout, clusterDimMustBeSet;
    int requiredClusterWidth, requiredClusterHeight, requiredClusterDepth;
    int clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed, reserved[16];
} cudaFuncAttributes; /* 144 bytes in CUDA 12 and 13 */

typedef struct { char bytes[64]; } cudaIpcMemHandle_t;

/* cudaDeviceProp by offset: CUDA 13 dropped fields of CUDA 12 (clockRate, computeMode, ...). */
#if CUDA_MAJOR >= 13
enum { PROP_BYTES = 1008, PROP_SHIFT_A = 4, PROP_SHIFT_B = 16, PROP_SHIFT_C = 20, PROP_SHIFT_D = 24 };
#else
enum { PROP_BYTES = 1032, PROP_SHIFT_A = 0, PROP_SHIFT_B = 0, PROP_SHIFT_C = 0, PROP_SHIFT_D = 0 };
#endif
#endif
