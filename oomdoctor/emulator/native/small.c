/* Small libraries: only what is asked at load time. Built into each of them; unused ones do no harm. */
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
#ifdef LIB_cusolver
int cusolverDnCreate(void **h) { *h = calloc(1, 64); return 0; }
#endif
#ifdef LIB_cusparse
int cusparseCreate(void **h) { *h = calloc(1, 64); return 0; }
const char *cusparseGetErrorString(int code) { return code ? "emulated" : "success"; }
#endif
#ifdef LIB_cufft
int cufftCreate(int *h) { *h = 1; return 0; }
#endif
