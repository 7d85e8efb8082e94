/* cuBLAS: handles and modes, and what it writes on the host; products do nothing, and are noted. */
#include "emu.h"
#include "launches.h"
#include "versions.h"
#include <stdlib.h>
#include <string.h>
int cublasCreate_v2(void **h) { *h = calloc(1, 64); return 0; }
int cublasDestroy_v2(void *h) { free(h); return 0; }
typedef struct { void *stream; int math_mode; } handle;
int cublasSetStream_v2(handle *h, void *s) { if (h) h->stream = s; return 0; }
int cublasGetStream_v2(handle *h, void **s) { *s = h ? h->stream : NULL; return 0; }
int cublasSetMathMode(handle *h, int mode) { if (h) h->math_mode = mode; return 0; }
int cublasGetVersion_v2(void *h, int *v) { (void)h; *v = CUBLAS_VERSION; return 0; }
int cublasGetMathMode(handle *h, int *mode) { *mode = h ? h->math_mode : 0; return 0; }
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

/* Products: matrices are stored by columns, as in Fortran. */
enum { TF32_MATH = 3, COMPUTE_32F_TF32 = 77 }; /* cublasMath_t, cublasComputeType_t */
enum { R_32F, R_64F, R_16F, C_32F = 4, C_64F = 5 }; /* cudaDataType */
static int product(const char *name, int *seen, const handle *h, int compute, int ta, int tb, int64_t m, int64_t n, int64_t k, int64_t batch, int type) {
    int code = (int)emu_stub(name, seen, 0);
    if (!emu_noting || code) return code;
    int tf32 = type == R_32F && (compute == COMPUTE_32F_TF32 || (h && (h->math_mode & 15) == TF32_MATH));
    emu_note(&(emu_record){.kind = EMU_PRODUCT, .type = (uint8_t)type, .what = (uint16_t)((ta != 0) | (tb != 0) << 1 | tf32 * EMU_TF32),
                           .stream = (uint64_t)(h ? h->stream : NULL), .of = {m, n, k, batch}}, name);
    return 0;
}
#define PRODUCT_BY(compute, name, batch, type) static int seen; return product(#name, &seen, h, compute, ta, tb, m, n, k, batch, type)
#define PRODUCT(name, batch, type) PRODUCT_BY(0, name, batch, type)
#define P const void *
#define GEMMS(t, type) \
    int cublas##t##gemm_v2(void *h, int ta, int tb, int m, int n, int k, P alpha, P a, int lda, P b, int ldb, P beta, P c, int ldc) { (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc; PRODUCT(cublas##t##gemm_v2, 1, type); } \
    int cublas##t##gemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, P alpha, P a, int lda, long long sa, P b, int ldb, long long sb, P beta, P c, int ldc, long long sc, int batch) { (void)alpha, (void)a, (void)lda, (void)sa, (void)b, (void)ldb, (void)sb, (void)beta, (void)c, (void)ldc, (void)sc; PRODUCT(cublas##t##gemmStridedBatched, batch, type); } \
    int cublas##t##gemmBatched(void *h, int ta, int tb, int m, int n, int k, P alpha, P a, int lda, P b, int ldb, P beta, P c, int ldc, int batch) { (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc; PRODUCT(cublas##t##gemmBatched, batch, type); }
GEMMS(S, R_32F) GEMMS(D, R_64F) GEMMS(C, C_32F) GEMMS(Z, C_64F) GEMMS(H, R_16F)
#define GEMV(t, type) \
    int cublas##t##gemv_v2(void *h, int ta, int rows, int columns, P alpha, P a, int lda, P x, int ix, P beta, P y, int iy) { \
        (void)alpha, (void)a, (void)lda, (void)x, (void)ix, (void)beta, (void)y, (void)iy; \
        int tb = 0, m = ta ? columns : rows, n = 1, k = ta ? rows : columns; \
        PRODUCT(cublas##t##gemv_v2, 1, type); \
    }
GEMV(S, R_32F) GEMV(D, R_64F) GEMV(C, C_32F) GEMV(Z, C_64F)
int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, P alpha, P a, int type, int lda, P b, int tyb, int ldb, P beta, P c, int tyc, int ldc, int compute, int algo) {
    (void)alpha, (void)a, (void)lda, (void)b, (void)tyb, (void)ldb, (void)beta, (void)c, (void)tyc, (void)ldc, (void)algo;
    PRODUCT_BY(compute, cublasGemmEx, 1, type);
}
int cublasSgemmEx(void *h, int ta, int tb, int m, int n, int k, P alpha, P a, int type, int lda, P b, int tyb, int ldb, P beta, P c, int tyc, int ldc) {
    (void)alpha, (void)a, (void)lda, (void)b, (void)tyb, (void)ldb, (void)beta, (void)c, (void)tyc, (void)ldc;
    PRODUCT(cublasSgemmEx, 1, type);
}
int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, P alpha, P a, int type, int lda, long long sa, P b, int tyb, int ldb, long long sb, P beta, P c, int tyc, int ldc, long long sc, int batch, int compute, int algo) {
    (void)alpha, (void)a, (void)lda, (void)sa, (void)b, (void)tyb, (void)ldb, (void)sb, (void)beta, (void)c, (void)tyc, (void)ldc, (void)sc, (void)algo;
    PRODUCT_BY(compute, cublasGemmStridedBatchedEx, batch, type);
}
int cublasGemmBatchedEx(void *h, int ta, int tb, int m, int n, int k, P alpha, P a, int type, int lda, P b, int tyb, int ldb, P beta, P c, int tyc, int ldc, int batch, int compute, int algo) {
    (void)alpha, (void)a, (void)lda, (void)b, (void)tyb, (void)ldb, (void)beta, (void)c, (void)tyc, (void)ldc, (void)algo;
    PRODUCT_BY(compute, cublasGemmBatchedEx, batch, type);
}
