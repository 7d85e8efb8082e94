/* cuDNN: version and handle. Graphs (attention on Hopper, convolutions): each has one engine without
 * workspace. The older interface, which torch uses for batch norm, RNNs, dropout, CTC and fused
 * convolutions, is in cudnn_old.c. */
#include "emu.h"
#include "versions.h"
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
const char *cudnnGetErrorString(int code) { return code ? "CUDNN_STATUS_EMULATED" : "CUDNN_STATUS_SUCCESS"; }
int cudnnCreate(void **h) { *h = calloc(1, 64); return 0; }
int cudnnDestroy(void *h) { free(h); return 0; }
int cudnnGetProperty(int which, int *value) {
    static const int version[] = {CUDNN_VERSION / 10000, CUDNN_VERSION / 100 % 100, CUDNN_VERSION % 100};
    *value = which >= 0 && which < 3 ? version[which] : 0;
    return 0;
}

/* The backend API, as its C++ frontend uses it: a graph is finalised, one engine is offered. */
enum { HEURISTIC_RESULTS = 202, CONFIG_ENGINE = 300, CONFIG_WORKSPACE = 303, CONFIG_SHARED = 304, PLAN_WORKSPACE = 402, ENGINE_INDEX = 1301 };
enum { TYPE_INT64 = 3, TYPE_INT32 = 23 };
int cudnnBackendCreateDescriptor(int kind, void **d) { (void)kind; *d = calloc(1, 64); return 0; }
int cudnnBackendDestroyDescriptor(void *d) { free(d); return 0; }
int cudnnBackendGetAttribute(void *d, int name, int type, int64_t asked, int64_t *count, void *out) {
    (void)d;
    if (emu_trace() > 1) fprintf(stderr, "emulated: cudnn get %d type %d asked %ld\n", name, type, (long)asked);
    int64_t n = name == HEURISTIC_RESULTS || name == CONFIG_ENGINE || name == CONFIG_WORKSPACE ||
                name == CONFIG_SHARED || name == PLAN_WORKSPACE || name == ENGINE_INDEX;
    if (count) *count = n;
    if (name == PLAN_WORKSPACE) emu_inexact("cudnn_graph");
    if (n && asked > 0 && out && type == TYPE_INT64) {
        const char *workspace = getenv("OOMDOCTOR_EMULATED_CUDNN_WORKSPACE");
        *(int64_t *)out = (name == PLAN_WORKSPACE || name == CONFIG_WORKSPACE) && workspace ? atoll(workspace) : 0;
    }
    if (n && asked > 0 && out && type == TYPE_INT32) *(int32_t *)out = 0;
    return 0;
}
