/* cuSPARSE: descriptors keep the shapes, so that the size of a product can be bounded: how many
 * entries it has depends on values. Buffers are those that sorting and merging cannot do without. */
#include "emu.h"
#include <stdlib.h>

typedef struct { int64_t rows, columns, entries; } matrix;
static int opaque(void **d) { *d = calloc(1, sizeof(matrix)); return *d ? 0 : 2; }
static int made(void **d, int64_t rows, int64_t columns, int64_t entries) {
    if (opaque(d)) return 2;
    *(matrix *)*d = (matrix){rows, columns, entries};
    return 0;
}
const char *cusparseGetErrorString(int code) { return code ? "CUSPARSE_STATUS_EMULATED" : "CUSPARSE_STATUS_SUCCESS"; }
#define OPAQUE(name) int cusparse##name(void **d) { return opaque(d); }
OPAQUE(Create)
OPAQUE(CreateMatDescr)
OPAQUE(CreateBsrsm2Info)
OPAQUE(CreateBsrsv2Info)
OPAQUE(SpGEMM_createDescr)
OPAQUE(SpSM_createDescr)
OPAQUE(SpSV_createDescr)
#define FREED(name) int cusparse##name(void *d) { free(d); return 0; }
FREED(Destroy)
FREED(DestroyMatDescr)
FREED(DestroyBsrsm2Info)
FREED(DestroyBsrsv2Info)
FREED(SpGEMM_destroyDescr)
FREED(SpSM_destroyDescr)
FREED(SpSV_destroyDescr)
FREED(DestroySpMat)
FREED(DestroyDnMat)
FREED(DestroyDnVec)
int cusparseCreateCsr(void **d, int64_t rows, int64_t columns, int64_t entries, void *o, void *c, void *v, int ot, int ct, int base, int type) { (void)o, (void)c, (void)v, (void)ot, (void)ct, (void)base, (void)type; return made(d, rows, columns, entries); }
int cusparseCreateCoo(void **d, int64_t rows, int64_t columns, int64_t entries, void *r, void *c, void *v, int it, int base, int type) { (void)r, (void)c, (void)v, (void)it, (void)base, (void)type; return made(d, rows, columns, entries); }
int cusparseCreateDnMat(void **d, int64_t rows, int64_t columns, int64_t ld, void *v, int type, int order) { (void)ld, (void)v, (void)type, (void)order; return made(d, rows, columns, rows * columns); }
int cusparseCreateDnVec(void **d, int64_t n, void *v, int type) { (void)v, (void)type; return made(d, n, 1, n); }

static int buffer(size_t *out, size_t bytes) { emu_inexact("cusparse"); *out = bytes; return 0; }
int cusparseSpMV_bufferSize(void *h, int op, const void *alpha, const void *a, const void *x, const void *beta, void *y, int type, int algorithm, size_t *out) { (void)h, (void)op, (void)alpha, (void)a, (void)x, (void)beta, (void)y, (void)type, (void)algorithm; return buffer(out, 0); }
int cusparseSpMM_bufferSize(void *h, int oa, int ob, const void *alpha, const void *a, const void *b, const void *beta, void *c, int type, int algorithm, size_t *out) { (void)h, (void)oa, (void)ob, (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)type, (void)algorithm; return buffer(out, 0); }
int cusparseSDDMM_bufferSize(void *h, int oa, int ob, const void *alpha, const void *a, const void *b, const void *beta, void *c, int type, int algorithm, size_t *out) { (void)h, (void)oa, (void)ob, (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)type, (void)algorithm; return buffer(out, 0); }
int cusparseSpSV_bufferSize(void *h, int op, const void *alpha, const void *a, const void *x, void *y, int type, int algorithm, void *descr, size_t *out) { (void)h, (void)op, (void)alpha, (void)x, (void)y, (void)type, (void)algorithm, (void)descr; return buffer(out, (size_t)((const matrix *)a)->rows * 4); }
int cusparseSpSM_bufferSize(void *h, int oa, int ob, const void *alpha, const void *a, const void *b, void *c, int type, int algorithm, void *descr, size_t *out) { (void)h, (void)oa, (void)ob, (void)alpha, (void)b, (void)c, (void)type, (void)algorithm, (void)descr; return buffer(out, (size_t)((const matrix *)a)->rows * 4); }
int cusparseXcoosort_bufferSizeExt(void *h, int m, int n, int entries, const int *r, const int *c, size_t *out) { (void)h, (void)m, (void)n, (void)r, (void)c; return buffer(out, (size_t)entries * 4); }
int cusparseXcsrsort_bufferSizeExt(void *h, int m, int n, int entries, const int *r, const int *c, size_t *out) { (void)h, (void)m, (void)n, (void)r, (void)c; return buffer(out, (size_t)entries * 4); }
#define BLOCKS(t) \
    int cusparse##t##bsrsv2_bufferSize(void *h, int dir, int op, int rows, int entries, const void *d, void *v, const int *r, const int *c, int block, void *info, int *out) { (void)h, (void)dir, (void)op, (void)entries, (void)d, (void)v, (void)r, (void)c, (void)block, (void)info; emu_inexact("cusparse"); *out = rows * 4; return 0; } \
    int cusparse##t##bsrsm2_bufferSize(void *h, int dir, int op, int ox, int rows, int n, int entries, const void *d, void *v, const int *r, const int *c, int block, void *info, int *out) { (void)h, (void)dir, (void)op, (void)ox, (void)n, (void)entries, (void)d, (void)v, (void)r, (void)c, (void)block, (void)info; emu_inexact("cusparse"); *out = rows * 4; return 0; } \
    int cusparse##t##csrgeam2_bufferSizeExt(void *h, int m, int n, const void *alpha, const void *da, int na, const void *va, const int *ra, const int *ca, const void *beta, const void *db, int nb, const void *vb, const int *rb, const int *cb, const void *dc, const void *vc, const int *rc, const int *cc, size_t *out) { (void)h, (void)n, (void)alpha, (void)da, (void)na, (void)va, (void)ra, (void)ca, (void)beta, (void)db, (void)nb, (void)vb, (void)rb, (void)cb, (void)dc, (void)vc, (void)rc, (void)cc; return buffer(out, (size_t)m * 4); }
BLOCKS(S)
BLOCKS(D)
BLOCKS(C)
BLOCKS(Z)
/* -1: no pivot is zero. */
int cusparseXbsrsv2_zeroPivot(void *h, void *info, int *at) { (void)h, (void)info; *at = -1; return 0; }
int cusparseXbsrsm2_zeroPivot(void *h, void *info, int *at) { (void)h, (void)info; *at = -1; return 0; }

/* --- entries of a sum and of a product: at most so many --- */

static int64_t at_most(int64_t rows, int64_t columns, int64_t entries) {
    int64_t all = rows && columns > INT64_MAX / rows ? INT64_MAX : rows * columns;
    return entries < all ? entries : all;
}
int cusparseXcsrgeam2Nnz(void *h, int m, int n, const void *da, int na, const int *ra, const int *ca, const void *db, int nb, const int *rb, const int *cb, const void *dc, int *rc, int *total, void *w) {
    (void)h, (void)da, (void)ra, (void)ca, (void)db, (void)rb, (void)cb, (void)dc, (void)rc, (void)w;
    emu_inexact("sparse_entries");
    *total = (int)at_most(m, n, (int64_t)na + nb);
    return 0;
}
int cusparseSpGEMM_workEstimation(void *h, int oa, int ob, const void *alpha, const void *pa, const void *pb, const void *beta, void *pc, int type, int algorithm, void *descr, size_t *out, void *given) {
    const matrix *a = pa, *b = pb;
    matrix *c = pc;
    (void)h, (void)oa, (void)ob, (void)alpha, (void)beta, (void)type, (void)algorithm, (void)descr;
    emu_inexact("sparse_entries");
    /* Each entry of the left matrix meets a row of the right one: on average so many products. */
    double products = b->rows ? (double)a->entries * (double)b->entries / (double)b->rows : 0;
    c->entries = at_most(c->rows, c->columns, products > 9e18 ? INT64_MAX : (int64_t)products);
    if (!given) *out = (size_t)a->rows * 8;
    return 0;
}
int cusparseSpGEMM_compute(void *h, int oa, int ob, const void *alpha, const void *a, const void *b, const void *beta, void *pc, int type, int algorithm, void *descr, size_t *out, void *given) {
    (void)h, (void)oa, (void)ob, (void)alpha, (void)a, (void)b, (void)beta, (void)type, (void)algorithm, (void)descr;
    emu_inexact("cusparse");
    if (!given) *out = (size_t)((matrix *)pc)->entries * 8;
    return 0;
}
int cusparseSpMatGetSize(const void *d, int64_t *rows, int64_t *columns, int64_t *entries) {
    const matrix *m = d;
    *rows = m->rows, *columns = m->columns, *entries = m->entries;
    return 0;
}
