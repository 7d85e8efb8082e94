/* cuBLAS: handles and modes, and what it writes on the host; the products are default stubs. */
#include "emu.h"
#include "versions.h"
#include <stdlib.h>
#include <string.h>
int cublasCreate_v2(void **h) { *h = calloc(1, 64); return 0; }
int cublasDestroy_v2(void *h) { free(h); return 0; }
int cublasGetVersion_v2(void *h, int *v) { (void)h; *v = CUBLAS_VERSION; return 0; }
int cublasGetMathMode(void *h, int *mode) { (void)h; *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *h, int *mode) { (void)h; *mode = 0; return 0; }
const char *cublasGetStatusString(int code) { return code ? "CUBLAS_STATUS_EMULATED" : "CUBLAS_STATUS_SUCCESS"; }

/* Results are on the device or, by the pointer mode, on the host: there they are 0. */
static int zero(void *result, size_t bytes) {
    if (result && !emu_is_device((uint64_t)(uintptr_t)result)) memset(result, 0, bytes);
    return 0;
}
#define DOT(name, bytes) int cublas##name##_v2(void *h, int n, const void *x, int ix, const void *y, int iy, void *r) { (void)h, (void)n, (void)x, (void)ix, (void)y, (void)iy; return zero(r, bytes); }
DOT(Sdot, 4) DOT(Ddot, 8) DOT(Cdotu, 8) DOT(Cdotc, 8) DOT(Zdotu, 16) DOT(Zdotc, 16)
int cublasDotEx(void *h, int n, const void *x, int tx, int ix, const void *y, int ty, int iy, void *r, int type, int e) {
    (void)h, (void)n, (void)x, (void)tx, (void)ix, (void)y, (void)ty, (void)iy, (void)e;
    return zero(r, type == 1 || type == 4 ? 8 : type == 5 ? 16 : type == 2 || type == 14 ? 2 : 4); /* cudaDataType */
}
#define NORM(name, bytes) int cublas##name##_v2(void *h, int n, const void *x, int ix, void *r) { (void)h, (void)n, (void)x, (void)ix; return zero(r, bytes); }
NORM(Snrm2, 4) NORM(Dnrm2, 8) NORM(Scnrm2, 4) NORM(Dznrm2, 8) NORM(Sasum, 4) NORM(Dasum, 8) NORM(Scasum, 4) NORM(Dzasum, 8)
NORM(Isamax, 4) NORM(Idamax, 4) NORM(Icamax, 4) NORM(Izamax, 4) NORM(Isamin, 4) NORM(Idamin, 4) NORM(Icamin, 4) NORM(Izamin, 4)
/* `info` of batches is on the host: 0, all arguments are right. */
#define BATCHES(t) \
    int cublas##t##getrsBatched(void *h, int op, int n, int rhs, const void *a, int lda, const int *p, const void *b, int ldb, int *info, int batch) { (void)h, (void)op, (void)n, (void)rhs, (void)a, (void)lda, (void)p, (void)b, (void)ldb, (void)batch; *info = 0; return 0; } \
    int cublas##t##geqrfBatched(void *h, int m, int n, const void *a, int lda, const void *tau, int *info, int batch) { (void)h, (void)m, (void)n, (void)a, (void)lda, (void)tau, (void)batch; *info = 0; return 0; } \
    int cublas##t##gelsBatched(void *h, int op, int m, int n, int rhs, const void *a, int lda, const void *c, int ldc, int *info, int *device, int batch) { (void)h, (void)op, (void)m, (void)n, (void)rhs, (void)a, (void)lda, (void)c, (void)ldc, (void)device, (void)batch; *info = 0; return 0; }
BATCHES(S) BATCHES(D) BATCHES(C) BATCHES(Z)
