/* Small libraries: only what is asked at load time. Built into each of them; unused ones do no harm. */
#include "emu.h"
#include "versions.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#ifdef LIB_nvrtc
int nvrtcVersion(int *major, int *minor) { *major = CUDA_VERSION / 1000, *minor = CUDA_VERSION % 1000 / 10; return 0; }
const char *nvrtcGetErrorString(int code) { return code ? "emulated: no compiler" : "NVRTC_SUCCESS"; }
int nvrtcCreateProgram(void **p, const char *s, const char *n, int h, const char *const *a, const char *const *b) { (void)s, (void)n, (void)h, (void)a, (void)b; *p = calloc(1, 64); return 0; }
static const int archs[] = {
#if CUDA_MAJOR < 13
    50, 52, 53, 60, 61, 62, 70, 72,
#endif
    75, 80, 86, 87, 89, 90, 100, 103, 120, 121};
int nvrtcGetNumSupportedArchs(int *n) { *n = sizeof archs / sizeof *archs; return 0; }
int nvrtcGetSupportedArchs(int *out) { memcpy(out, archs, sizeof archs); return 0; }
int nvrtcGetPTXSize(void *p, size_t *n) { (void)p; *n = 8; return 0; }
int nvrtcGetCUBINSize(void *p, size_t *n) { (void)p; *n = 8; return 0; }
int nvrtcGetProgramLogSize(void *p, size_t *n) { (void)p; *n = 1; return 0; }
int nvrtcGetProgramLog(void *p, char *out) { (void)p; *out = 0; return 0; }
int nvrtcGetLoweredName(void *p, const char *n, const char **out) { (void)p; *out = n; return 0; }
int nvrtcGetPTX(void *p, char *out) { (void)p; out[0] = 0; return 0; }
int nvrtcGetCUBIN(void *p, char *out) { (void)p; out[0] = 0; return 0; }
#endif
#ifdef LIB_cupti
int cuptiGetVersion(unsigned *v) { *v = CUDA_MAJOR >= 13 ? 130000 : 18; return 0; }
int cuptiGetResultString(int code, const char **out) { (void)code; *out = "emulated: no profiler"; return 0; }
int cuptiActivityGetNextRecord(void *b, size_t n, void **r) { (void)b, (void)n; *r = NULL; return 12; }
int cuptiActivityGetNumDroppedRecords(void *c, unsigned s, size_t *n) { (void)c, (void)s; *n = 0; return 0; }
#endif
#ifdef LIB_cufft
int cufftCreate(int *h) { *h = 1; return 0; }
/* The documentation: between one and eight times the data, in complex numbers. By cudaDataType. */
int cufftXtMakePlanMany(int h, int rank, long long *n, void *in, long long is, long long id, int it, void *on, long long os, long long od, int ot, long long batch, size_t *out, int type) {
    (void)h, (void)in, (void)is, (void)id, (void)it, (void)on, (void)os, (void)od, (void)ot;
    size_t bytes = type == 5 || type == 1 ? 16 : type == 6 || type == 2 ? 4 : 8;
    for (int i = 0; i < rank; i++) bytes *= (size_t)n[i];
    emu_inexact("cufft");
    if (out) *out = bytes * (size_t)batch;
    return 0;
}
#endif
#ifdef LIB_cusparseLt
/* 2:4 sparsity: half of the values and two bits for each of them. */
typedef struct { long long rows, columns, bytes; } half;
int cusparseLtInit(void *h) { memset(h, 0, 512); return 0; }
int cusparseLtDenseDescriptorInit(const void *h, void *d) { (void)h; memset(d, 0, 512); return 0; }
int cusparseLtStructuredDescriptorInit(const void *h, half *d, long long rows, long long columns, long long ld, unsigned align, int type, int order, int sparsity) {
    (void)h, (void)ld, (void)align, (void)order, (void)sparsity;
    *d = (half){rows, columns, type == 0 ? 4 : type == 2 || type == 14 ? 2 : 1};
    return 0;
}
int cusparseLtMatmulDescriptorInit(const void *h, void *d) { (void)h; memset(d, 0, 512); return 0; }
int cusparseLtMatmulAlgSelectionInit(const void *h, void *d) { (void)h; memset(d, 0, 512); return 0; }
int cusparseLtMatmulPlanInit(const void *h, void *d) { (void)h; memset(d, 0, 512); return 0; }
int cusparseLtMatmulAlgGetAttribute(const void *h, const void *a, int which, void *out, size_t n) { (void)h, (void)a, (void)which; memset(out, 0, n); return 0; }
int cusparseLtMatmulGetWorkspace(const void *h, const void *p, size_t *out) { (void)h, (void)p; emu_inexact("cusparselt"); *out = 0; return 0; }
int cusparseLtSpMMACompressedSize2(const void *h, const half *d, size_t *compressed, size_t *buffer) {
    (void)h;
    size_t values = (size_t)d->rows * (size_t)d->columns / 2;
    *compressed = values * (size_t)d->bytes + values / 4, *buffer = 0;
    return 0;
}
#endif
