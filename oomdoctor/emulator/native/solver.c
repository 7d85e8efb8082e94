/* cuSOLVER: handles, and the sizes of workspaces. They are not documented; these are LAPACK's smallest
 * for the same factorizations, or a copy of the matrix where the algorithm works on one. */
#include "emu.h"
#include <stdlib.h>

#define CREATE(name) int cusolverDn##name(void **d) { *d = calloc(1, 64); return *d ? 0 : 2; }
#define DESTROY(name) int cusolverDn##name(void *d) { free(d); return 0; }
CREATE(Create)
CREATE(CreateParams)
CREATE(CreateGesvdjInfo)
CREATE(CreateSyevjInfo)
DESTROY(Destroy)
DESTROY(DestroyParams)
DESTROY(DestroyGesvdjInfo)
DESTROY(DestroySyevjInfo)

enum { BLOCK = 32, INVALID_VALUE = 3 };
static int answer(int64_t elements, int *out) {
    emu_inexact("cusolver");
    *out = elements > INT32_MAX ? INT32_MAX : elements < 1 ? 1 : (int)elements;
    return 0;
}
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t eigen(int64_t n, int vectors) { return vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 1; } /* xSYEVD */

#define TYPES(make) make(S, or, sy) make(D, or, sy) make(C, un, he) make(Z, un, he)
#define SIZES(t, q, e) \
    int cusolverDn##t##geqrf_bufferSize(void *h, int m, int n, void *a, int lda, int *out) { (void)h, (void)m, (void)a, (void)lda; return answer((int64_t)n * BLOCK, out); } \
    int cusolverDn##t##getrf_bufferSize(void *h, int m, int n, void *a, int lda, int *out) { (void)h, (void)m, (void)a, (void)lda; return answer((int64_t)n * BLOCK, out); } \
    int cusolverDn##t##potrf_bufferSize(void *h, int uplo, int n, void *a, int lda, int *out) { (void)h, (void)uplo, (void)a, (void)lda; return answer((int64_t)n * BLOCK, out); } \
    int cusolverDn##t##sytrf_bufferSize(void *h, int n, void *a, int lda, int *out) { (void)h, (void)a, (void)lda; return answer((int64_t)n * BLOCK, out); } \
    int cusolverDn##t##q##gqr_bufferSize(void *h, int m, int n, int k, const void *a, int lda, const void *tau, int *out) { (void)h, (void)m, (void)k, (void)a, (void)lda, (void)tau; return answer((int64_t)n * BLOCK, out); } \
    int cusolverDn##t##q##mqr_bufferSize(void *h, int side, int trans, int m, int n, int k, const void *a, int lda, const void *tau, const void *c, int ldc, int *out) { (void)h, (void)trans, (void)k, (void)a, (void)lda, (void)tau, (void)c, (void)ldc; return answer((int64_t)(side ? m : n) * BLOCK, out); } \
    int cusolverDn##t##gesvd_bufferSize(void *h, int m, int n, int *out) { (void)h; return answer(larger(3 * smaller(m, n) + larger(m, n), 5 * smaller(m, n)), out); } \
    int cusolverDn##t##gesvdj_bufferSize(void *h, int jobz, int econ, int m, int n, const void *a, int lda, const void *s, const void *u, int ldu, const void *v, int ldv, int *out, void *params) { (void)h, (void)jobz, (void)econ, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v, (void)ldv, (void)params; return answer((int64_t)m * n, out); } \
    int cusolverDn##t##gesvdjBatched_bufferSize(void *h, int jobz, int m, int n, const void *a, int lda, const void *s, const void *u, int ldu, const void *v, int ldv, int *out, void *params, int batch) { (void)h, (void)jobz, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v, (void)ldv, (void)params; return answer((int64_t)batch * m * n, out); } \
    int cusolverDn##t##gesvdaStridedBatched_bufferSize(void *h, int jobz, int rank, int m, int n, const void *a, int lda, long long sa, const void *s, long long ss, const void *u, int ldu, long long su, const void *v, int ldv, long long sv, int *out, int batch) { (void)h, (void)jobz, (void)rank, (void)a, (void)lda, (void)sa, (void)s, (void)ss, (void)u, (void)ldu, (void)su, (void)v, (void)ldv, (void)sv; return answer((int64_t)batch * m * n, out); } \
    int cusolverDn##t##e##evd_bufferSize(void *h, int jobz, int uplo, int n, const void *a, int lda, const void *w, int *out) { (void)h, (void)uplo, (void)a, (void)lda, (void)w; return answer(eigen(n, jobz), out); } \
    int cusolverDn##t##e##evjBatched_bufferSize(void *h, int jobz, int uplo, int n, const void *a, int lda, const void *w, int *out, void *params, int batch) { (void)h, (void)jobz, (void)uplo, (void)a, (void)lda, (void)w, (void)params; return answer((int64_t)batch * n * n, out); }
TYPES(SIZES)
/* The norms of the residuals are on the host, if they are asked for. */
#define RESIDUALS(t, q, e) int cusolverDn##t##gesvdaStridedBatched(void *h, int jobz, int rank, int m, int n, const void *a, int lda, long long sa, void *s, long long ss, void *u, int ldu, long long su, void *v, int ldv, long long sv, void *w, int lw, int *info, double *residuals, int batch) { \
    (void)h, (void)jobz, (void)rank, (void)m, (void)n, (void)a, (void)lda, (void)sa, (void)s, (void)ss, (void)u, (void)ldu, (void)su, (void)v, (void)ldv, (void)sv, (void)w, (void)lw, (void)info; \
    for (int i = 0; residuals && i < batch; i++) residuals[i] = 0; \
    return 0; }
TYPES(RESIDUALS)

/* The interface with 64 bits: bytes on the device and on the host. By cudaDataType. */
static size_t bytes_of(int type) { return type == 1 || type == 4 ? 8 : type == 5 ? 16 : type == 2 || type == 14 ? 2 : 4; }
static int both(int64_t elements, int type, size_t *device, size_t *host) {
    emu_inexact("cusolver");
    *device = (size_t)(elements < 1 ? 1 : elements) * bytes_of(type), *host = 0;
    return 0;
}
int cusolverDnXgeqrf_bufferSize(void *h, void *p, int64_t m, int64_t n, int type, const void *a, int64_t lda, int tt, const void *tau, int c, size_t *device, size_t *host) { (void)h, (void)p, (void)m, (void)a, (void)lda, (void)tt, (void)tau, (void)c; return both(n * BLOCK, type, device, host); }
int cusolverDnXpotrf_bufferSize(void *h, void *p, int uplo, int64_t n, int type, const void *a, int64_t lda, int c, size_t *device, size_t *host) { (void)h, (void)p, (void)uplo, (void)a, (void)lda, (void)c; return both(n * BLOCK, type, device, host); }
int cusolverDnXsyevd_bufferSize(void *h, void *p, int jobz, int uplo, int64_t n, int type, const void *a, int64_t lda, int tw, const void *w, int c, size_t *device, size_t *host) { (void)h, (void)p, (void)uplo, (void)a, (void)lda, (void)tw, (void)w, (void)c; return both(eigen(n, jobz), type, device, host); }
int cusolverDnXsyevBatched_bufferSize(void *h, void *p, int jobz, int uplo, int64_t n, int type, const void *a, int64_t lda, int tw, const void *w, int c, size_t *device, size_t *host, int64_t batch) { (void)h, (void)p, (void)jobz, (void)uplo, (void)a, (void)lda, (void)tw, (void)w, (void)c; return both(batch * n * n, type, device, host); }
int cusolverDnXsytrs_bufferSize(void *h, int uplo, int64_t n, int64_t rhs, int type, const void *a, int64_t lda, const int64_t *ipiv, int tb, void *b, int64_t ldb, size_t *device, size_t *host) { (void)h, (void)uplo, (void)a, (void)lda, (void)ipiv, (void)tb, (void)b, (void)ldb; return both(n * rhs, type, device, host); }
int cusolverDnXgeev_bufferSize(void *h, void *p, int left, int right, int64_t n, int type, const void *a, int64_t lda, int tw, const void *w, int tl, const void *l, int64_t ldl, int tr, const void *r, int64_t ldr, int c, size_t *device, size_t *host) { (void)h, (void)p, (void)left, (void)right, (void)a, (void)lda, (void)tw, (void)w, (void)tl, (void)l, (void)ldl, (void)tr, (void)r, (void)ldr, (void)c; return both(n * n + 4 * n, type, device, host); }
