/* cuBLASLt: descriptors, and one algorithm that asks for no workspace: torch allocates its own,
 * of a fixed size, before it asks. Products do nothing, and are noted. */
#include "emu.h"
#include "launches.h"
#include "versions.h"
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint64_t algo[8]; size_t workspace; int state; float waves; int reserved[4]; } heuristic;
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDA_VERSION; }
int cublasLtCreate(void **h) { *h = calloc(1, 64); return 0; }
int cublasLtDestroy(void *h) { free(h); return 0; }
/* What is kept of a product's description, and of a matrix: the attributes by their numbers. */
enum { COMPUTE, TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7 };
typedef struct { int32_t of[EPILOGUE + 1]; } product;
enum { MATRIX_TYPE, MATRIX_ROWS = 2, MATRIX_COLUMNS = 3, MATRIX_BATCH = 5 };
typedef struct { int64_t of[MATRIX_BATCH + 1]; } matrix;
enum { COMPUTE_32F_TF32 = 77 }; /* cublasComputeType_t */
int cublasLtMatmulDescCreate(void **d, int compute, int scale) {
    (void)scale;
    product *made = calloc(1, 64);
    made->of[COMPUTE] = compute;
    *d = made;
    return 0;
}
int cublasLtMatmulDescSetAttribute(product *d, int which, const void *value, size_t n) {
    if (which >= 0 && which <= EPILOGUE && n == sizeof(int32_t)) memcpy(&d->of[which], value, n);
    return 0;
}
int cublasLtMatmulDescDestroy(void *d) { free(d); return 0; }
int cublasLtMatrixLayoutCreate(void **d, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    (void)ld;
    matrix *made = calloc(1, 64);
    made->of[MATRIX_TYPE] = type, made->of[MATRIX_ROWS] = (int64_t)rows, made->of[MATRIX_COLUMNS] = (int64_t)columns;
    made->of[MATRIX_BATCH] = 1;
    *d = made;
    return 0;
}
int cublasLtMatrixLayoutSetAttribute(matrix *d, int which, const void *value, size_t n) {
    if (which < 0 || which > MATRIX_BATCH || n > sizeof(int64_t)) return 0;
    d->of[which] = 0; /* some are 32 bits wide */
    memcpy(&d->of[which], value, n);
    return 0;
}
int cublasLtMatrixLayoutDestroy(void *d) { free(d); return 0; }
int cublasLtMatrixTransformDescCreate(void **d, int type) { (void)type; *d = calloc(1, 64); return 0; }
int cublasLtMatmulPreferenceCreate(void **d) { *d = calloc(1, 64); return 0; }
int cublasLtMatmulPreferenceDestroy(void *d) { free(d); return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *h, void *op, void *a, void *b, void *c, void *d, void *preference,
                                   int asked, heuristic *out, int *found) {
    (void)h, (void)op, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = asked > 0;
    if (asked > 0) {
        memset(out, 0, sizeof *out);
        out->waves = 1.0f;
    }
    return 0;
}
int cublasLtMatmul(void *h, const product *p, const void *alpha, const void *a, const matrix *of_a, const void *b,
                   const matrix *of_b, const void *beta, const void *c, const matrix *of_c, void *d, const matrix *of_d,
                   const void *algo, void *workspace, size_t bytes, void *s) {
    (void)h, (void)alpha, (void)a, (void)b, (void)of_b, (void)beta, (void)c, (void)of_c, (void)d, (void)algo, (void)workspace, (void)bytes;
    static int seen;
    int code = (int)emu_stub("cublasLtMatmul", &seen, 0);
    if (!emu_noting || code || !p || !of_a || !of_d) return code;
    int ta = p->of[TRANSPOSE_A], tb = p->of[TRANSPOSE_B];
    int64_t k = of_a->of[ta ? MATRIX_ROWS : MATRIX_COLUMNS], batch = of_d->of[MATRIX_BATCH];
    emu_note(&(emu_record){.kind = EMU_PRODUCT, .type = (uint8_t)of_a->of[MATRIX_TYPE], .stream = (uint64_t)s,
                           .what = (uint16_t)((ta != 0) | (tb != 0) << 1 | (p->of[COMPUTE] == COMPUTE_32F_TF32) * EMU_TF32 | p->of[EPILOGUE] * EMU_EPILOGUE),
                           .of = {of_d->of[MATRIX_ROWS], of_d->of[MATRIX_COLUMNS], k, batch}}, "cublasLtMatmul");
    return 0;
}
