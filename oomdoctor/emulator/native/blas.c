/* cuBLAS: handles and modes; the products themselves are default stubs. */
#include "versions.h"
#include <stdlib.h>
int cublasCreate_v2(void **h) { *h = calloc(1, 64); return 0; }
int cublasDestroy_v2(void *h) { free(h); return 0; }
int cublasGetVersion_v2(void *h, int *v) { (void)h; *v = CUBLAS_VERSION; return 0; }
int cublasGetMathMode(void *h, int *mode) { (void)h; *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *h, int *mode) { (void)h; *mode = 0; return 0; }
const char *cublasGetStatusString(int code) { return code ? "CUBLAS_STATUS_EMULATED" : "CUBLAS_STATUS_SUCCESS"; }
