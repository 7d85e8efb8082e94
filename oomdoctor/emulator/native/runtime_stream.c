/* The CUDA runtime: streams, events and graphs. Work is done at once, so all is always ready. */
#include "abi.h"
#include "emu.h"
#include "launches.h"
#include "runtime.h"
#include "values.h"
#include <stdlib.h>

typedef struct { int priority, capturing; unsigned long long capture_id; } stream;
typedef struct { double at; int recorded; } event;
static unsigned long long captures;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    (void)flags;
    NEED_DEVICE();
    MAY_FAIL("cudaStreamCreateWithPriority");
    stream *made = calloc(1, sizeof *made);
    made->priority = priority;
    *s = (cudaStream_t)made;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    return cudaStreamCreateWithPriority(s, flags, 0);
}
#define OWN(s) ((uintptr_t)(s) > 2) /* not the default, legacy or per-thread stream */
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    if (OWN(s)) free(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    MAY_FAIL("cudaStreamSynchronize");
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    (void)s;
    MAY_FAIL("cudaStreamQuery");
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) {
    *p = OWN(s) ? ((stream *)s)->priority : 0;
    return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t s, int *d) {
    (void)s;
    *d = *emu_current();
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, int *status) {
    *status = OWN(s) && ((stream *)s)->capturing;
    return cudaSuccess;
}
static cudaError_t capture_info(cudaStream_t s, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, size_t *n) {
    cudaStreamIsCapturing(s, status);
    if (!*status) return cudaSuccess;
    if (id) *id = ((stream *)s)->capture_id;
    if (graph) *graph = s;
    if (dependencies) *dependencies = NULL;
    if (n) *n = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t s, int *status, unsigned long long *id, void **graph,
                                        const void **dependencies, size_t *n) {
    return capture_info(s, status, id, graph, dependencies, n);
}
/* CUDA 12.3's version 3 became the unsuffixed one in CUDA 13; before, that had three arguments. */
cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t s, int *status, unsigned long long *id, void **graph,
                                        const void **dependencies, const void **edges, size_t *n) {
    if (edges) *edges = NULL;
    return capture_info(s, status, id, graph, dependencies, n);
}
#if CUDA_MAJOR >= 13
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, int *status, unsigned long long *id, void **graph,
                                     const void **dependencies, const void **edges, size_t *n) {
    return cudaStreamGetCaptureInfo_v3(s, status, id, graph, dependencies, edges, n);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, int *status, unsigned long long *id) {
    return capture_info(s, status, id, NULL, NULL, NULL);
}
#endif
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode) {
    (void)mode;
    if (!OWN(s)) return emu_fail(cudaErrorStreamCaptureUnsupported);
    ((stream *)s)->capturing = 1;
    emu_capturing(1);
    emu_values_replay(1);
    ((stream *)s)->capture_id = ++captures;
    emu_note_graph(EMU_CAPTURE_BEGINS, NULL, NULL, s);
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, void **graph) {
    if (OWN(s)) ((stream *)s)->capturing = 0, emu_capturing(-1);
    emu_values_replay(0);
    *graph = calloc(1, 64);
    emu_note_graph(EMU_CAPTURE_ENDS, *graph, NULL, s);
    return cudaSuccess;
}
cudaError_t cudaGraphCreate(void **graph, unsigned flags) {
    (void)flags;
    *graph = calloc(1, 64);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(void *graph, void **nodes, size_t *n) {
    (void)graph, (void)nodes;
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    (void)flags;
    *exec = calloc(1, 64);
    emu_note_graph(EMU_GRAPH_MADE, *exec, graph, NULL);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
cudaError_t cudaGraphLaunch(void *exec, cudaStream_t s) {
    MAY_FAIL("cudaGraphLaunch");
    emu_note_graph(EMU_GRAPH_RUN, exec, NULL, s);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(void *graph) { free(graph); return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(void *exec) { free(exec); return cudaSuccess; }

cudaError_t cudaStreamAddCallback(cudaStream_t s, void (*f)(cudaStream_t, cudaError_t, void *), void *data, unsigned flags) {
    (void)flags;
    f(s, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, void (*f)(void *), void *data) {
    (void)s;
    f(data);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    (void)flags;
    *e = calloc(1, sizeof(event));
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)s;
    ((event *)e)->at = emu_now();
    ((event *)e)->recorded = 1;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
    (void)flags;
    return cudaEventRecord(e, s);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    (void)e;
    MAY_FAIL("cudaEventQuery");
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)e;
    MAY_FAIL("cudaEventSynchronize");
    return cudaSuccess;
}
/* The host's time between the records: not the time that a GPU would take. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    event *from = (event *)a, *to = (event *)b;
    if (!from->recorded || !to->recorded) return emu_fail(cudaErrorInvalidResourceHandle);
    *ms = (float)((to->at - from->at) * 1e3);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t a, cudaEvent_t b) {
    return cudaEventElapsedTime(ms, a, b);
}
