/* cuDNN's older interface, from its public headers: descriptors keep what they are told, and sizes
 * follow from them. Weights of RNNs are exact. Of workspaces and reserves, which are not documented,
 * this counts what an algorithm cannot do without: emu_inexact says so. */
#include "emu.h"
#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 12
typedef struct { int type, format, n, dims[MAX_DIMS], strides[MAX_DIMS]; } shape; /* tensor or filter */
typedef struct { int cell, bias, directions, skip, type, input, hidden, projection, layers; } rnn;
typedef struct { int type, length, batch, width; } sequences;
typedef struct { int longest_label; } ctc;

static const int BYTES[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2, 8, 1, 1, 1}; /* by cudnnDataType_t */
static size_t bytes_of(int type) { return type >= 0 && type < (int)(sizeof BYTES / sizeof *BYTES) ? (size_t)BYTES[type] : 4; }

#define CREATE(name, type) int cudnnCreate##name##Descriptor(void **d) { *d = calloc(1, sizeof(type)); return *d ? 0 : 2001; } \
    int cudnnDestroy##name##Descriptor(void *d) { free(d); return 0; }
CREATE(Tensor, shape)
CREATE(Filter, shape)
CREATE(RNN, rnn)
CREATE(RNNData, sequences)
CREATE(CTCLoss, ctc)
CREATE(Activation, long)
CREATE(Convolution, long)
CREATE(Dropout, long)
CREATE(Pooling, long)
CREATE(SpatialTransformer, long)

enum { NOT_SUPPORTED = 3000, BAD_PARAM = 2000 };

int cudnnGetStream(void *h, void **stream) { (void)h; *stream = NULL; return 0; }
void cudnnGetLastErrorString(char *message, size_t n) { if (n) *message = 0; }

/* --- tensors and filters --- */

static int keep(shape *d, int type, int format, int n, const int *dims, const int *strides) {
    if (n < 1 || n > MAX_DIMS) return BAD_PARAM;
    *d = (shape){.type = type, .format = format, .n = n};
    memcpy(d->dims, dims, (size_t)n * sizeof *dims);
    if (strides) memcpy(d->strides, strides, (size_t)n * sizeof *strides);
    return 0;
}
int cudnnSetTensorNdDescriptor(void *d, int type, int n, const int *dims, const int *strides) { return keep(d, type, 0, n, dims, strides); }
int cudnnSetFilterNdDescriptor(void *d, int type, int format, int n, const int *dims) { return keep(d, type, format, n, dims, NULL); }
static int told(const shape *d, int asked, int *type, int *n, int *dims, int *strides) {
    *type = d->type, *n = d->n;
    int some = asked < d->n ? asked : d->n;
    memcpy(dims, d->dims, (size_t)some * sizeof *dims);
    if (strides) memcpy(strides, d->strides, (size_t)some * sizeof *strides);
    return 0;
}
int cudnnGetTensorNdDescriptor(const void *d, int asked, int *type, int *n, int *dims, int *strides) { return told(d, asked, type, n, dims, strides); }
int cudnnGetFilterNdDescriptor(const void *d, int asked, int *type, int *format, int *n, int *dims) {
    *format = ((const shape *)d)->format;
    return told(d, asked, type, n, dims, NULL);
}

/* --- batch norm --- */

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int mode, int ops, const void *x, const void *z, const void *y, const void *scale, const void *activation, size_t *size) {
    (void)h, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    emu_inexact("cudnn_batch_norm");
    *size = 0;
    return 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int mode, int ops, const void *x, const void *y, const void *dy, const void *dz, const void *dx, const void *scale, const void *activation, size_t *size) {
    (void)h, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale, (void)activation;
    *size = 0;
    return 0;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int mode, int ops, const void *activation, const void *x, size_t *size) {
    const shape *d = x;
    (void)h, (void)mode, (void)activation;
    size_t elements = 1;
    for (int i = 0; i < d->n; i++) elements *= (size_t)d->dims[i];
    *size = ops ? (elements + 7) / 8 : 0; /* of a fused activation, a bit an element: was it positive? */
    return 0;
}

/* --- convolutions of the older interface: one algorithm, without workspace --- */

typedef struct { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; } performance;
static int one_algorithm(int asked, int *count, performance *out) {
    emu_inexact("cudnn_convolution");
    *count = asked > 0;
    if (asked > 0) *out = (performance){.algorithm = 1, .determinism = 1};
    return 0;
}
#define ALGORITHM(name) int cudnnGetConvolution##name##Algorithm_v7(void *h, const void *a, const void *b, const void *c, const void *d, int asked, int *count, performance *out) { \
    (void)h, (void)a, (void)b, (void)c, (void)d; return one_algorithm(asked, count, out); }
ALGORITHM(Forward)
ALGORITHM(BackwardData)
ALGORITHM(BackwardFilter)
#define FIND(name) int cudnnFindConvolution##name##AlgorithmEx(void *h, const void *a, const void *ap, const void *b, const void *bp, const void *c, const void *d, void *dp, int asked, int *count, performance *out, void *w, size_t n) { \
    (void)h, (void)a, (void)ap, (void)b, (void)bp, (void)c, (void)d, (void)dp, (void)w, (void)n; return one_algorithm(asked, count, out); }
FIND(Forward)
FIND(BackwardData)
FIND(BackwardFilter)
#define WORKSPACE(name) int cudnnGetConvolution##name##WorkspaceSize(void *h, const void *a, const void *b, const void *c, const void *d, int algorithm, size_t *size) { \
    (void)h, (void)a, (void)b, (void)c, (void)d, (void)algorithm; *size = 0; return 0; }
WORKSPACE(Forward)
WORKSPACE(BackwardData)
WORKSPACE(BackwardFilter)

/* --- dropout: how large its generators are is nowhere said --- */

int cudnnDropoutGetStatesSize(void *h, size_t *size) {
    (void)h;
    emu_inexact("cudnn_dropout");
    *size = 0;
    return 0;
}

/* --- recurrent networks --- */

enum { RNN_RELU, RNN_TANH, LSTM, GRU };
static int gates(const rnn *r) { return r->cell == LSTM ? 4 : r->cell == GRU ? 3 : 1; }
static size_t outputs(const rnn *r) { return (size_t)(r->projection && r->projection != r->hidden ? r->projection : r->hidden); }
static int biases(const rnn *r) { return r->bias == 0 ? 0 : r->bias == 2 ? 2 : 1; } /* none, both, one */
static size_t inputs(const rnn *r, int pseudo) { return pseudo < r->directions ? (size_t)r->input : outputs(r) * (size_t)r->directions; }

int cudnnSetRNNDescriptor_v8(void *d, int algorithm, int cell, int bias, int direction, int mode, int type, int precision, int math,
                             int32_t input, int32_t hidden, int32_t projection, int32_t layers, void *dropout, uint32_t flags) {
    (void)algorithm, (void)precision, (void)math, (void)dropout, (void)flags;
    *(rnn *)d = (rnn){cell, bias, direction + 1, mode, type, input, hidden, projection, layers};
    return 0;
}
int cudnnSetRNNDataDescriptor(void *d, int type, int layout, int length, int batch, int width, const int *lengths, void *fill) {
    (void)layout, (void)lengths, (void)fill;
    *(sequences *)d = (sequences){type, length, batch, width};
    return 0;
}

/* Elements of the matrices of one layer and direction: of the input, of the state, of the projection. */
static size_t matrices(const rnn *r, int pseudo) {
    size_t hidden = (size_t)r->hidden, g = (size_t)gates(r);
    size_t input = r->skip && pseudo < r->directions ? 0 : g * hidden * inputs(r, pseudo);
    size_t projection = outputs(r) != hidden ? outputs(r) * hidden : 0;
    return input + g * hidden * outputs(r) + projection;
}
static size_t bias_elements(const rnn *r) { return (size_t)(biases(r) * gates(r) * r->hidden); }

int cudnnGetRNNWeightSpaceSize(void *h, void *d, size_t *size) {
    const rnn *r = d;
    (void)h;
    size_t elements = 0;
    for (int i = 0; i < r->layers * r->directions; i++) elements += matrices(r, i) + bias_elements(r);
    *size = elements * bytes_of(r->type);
    return 0;
}

/* All matrices come first, by layer and direction, then all biases. What is not asked for is NULL. */
int cudnnGetRNNWeightParams(void *h, void *d, int32_t pseudo, size_t bytes, const void *space, int32_t id, void *matrix, void **m, void *bias, void **b) {
    const rnn *r = d;
    (void)h, (void)bytes;
    int g = gates(r), projects = id == 2 * g;
    size_t hidden = (size_t)r->hidden, width = inputs(r, pseudo), before = 0, start = 0;
    if (id < 0 || id > 2 * g || (projects && outputs(r) == hidden)) return BAD_PARAM;
    for (int i = 0; i < r->layers * r->directions; i++) {
        if (i < pseudo) before += matrices(r, i);
        start += matrices(r, i);
    }
    size_t input = r->skip && pseudo < r->directions ? 0 : hidden * width;
    size_t at = before + (size_t)(id < g ? id : g) * input + (size_t)(id > g ? id - g : 0) * hidden * outputs(r);
    int columns = projects ? r->hidden : id < g ? (int)width : (int)outputs(r);
    int rows = projects ? (int)outputs(r) : r->hidden;
    char *base = (char *)(uintptr_t)space;
    if (matrix) keep(matrix, r->type, 0, 3, (int[]){1, rows, columns}, (int[]){rows * columns, columns, 1});
    if (m) *m = id < g && !input ? NULL : base + at * bytes_of(r->type);
    int has = biases(r) == 2 ? !projects : biases(r) == 1 ? (r->bias == 1 ? id < g : id >= g && !projects) : 0;
    size_t place = (size_t)(biases(r) == 2 ? id : id % g) * hidden + (size_t)pseudo * bias_elements(r);
    if (bias && has) keep(bias, r->type, 0, 3, (int[]){1, r->hidden, 1}, (int[]){r->hidden, 1, 1});
    else if (bias) *(shape *)bias = (shape){0};
    if (b) *b = has ? base + (start + place) * bytes_of(r->type) : NULL;
    return 0;
}

/* The backward pass needs each step's gates, cells and states of every layer, and between layers
 * what dropout has kept; a step's gates are computed for all steps at once. */
int cudnnGetRNNTempSpaceSizes(void *h, void *d, int mode, void *x, size_t *workspace, size_t *reserve) {
    const rnn *r = d;
    const sequences *s = x;
    (void)h;
    emu_inexact("cudnn_rnn");
    size_t steps = (size_t)s->length * (size_t)s->batch, size = bytes_of(r->type), directions = (size_t)r->directions;
    size_t each = (size_t)(gates(r) + (r->cell == LSTM ? 2 : 1)) * (size_t)r->hidden;
    if (workspace) *workspace = steps * (size_t)(gates(r) * r->hidden) * directions * size;
    if (reserve) *reserve = mode ? steps * each * directions * (size_t)r->layers * size : 0;
    return 0;
}

/* --- CTC: the forward variables of every time step and position --- */

int cudnnSetCTCLossDescriptor_v9(void *d, int type, int norm, int gradient, int longest) {
    (void)type, (void)norm, (void)gradient;
    ((ctc *)d)->longest_label = longest;
    return 0;
}
static int forward_variables(const shape *probabilities, int longest, size_t *size) {
    emu_inexact("cudnn_ctc");
    *size = (size_t)probabilities->dims[0] * (size_t)probabilities->dims[1] * (size_t)(2 * longest + 1) * 4;
    return 0;
}
int cudnnGetCTCLossWorkspaceSize_v8(void *h, int algorithm, void *d, const void *probabilities, const void *gradients, size_t *size) {
    (void)h, (void)algorithm, (void)gradients;
    return forward_variables(probabilities, ((ctc *)d)->longest_label, size);
}
int cudnnGetCTCLossWorkspaceSize(void *h, const void *probabilities, const void *gradients, const int *labels, const int *label_lengths,
                                 const int *input_lengths, int algorithm, void *d, size_t *size) {
    (void)h, (void)gradients, (void)labels, (void)input_lengths, (void)algorithm, (void)d;
    const shape *p = probabilities;
    int longest = 0;
    for (int i = 0; p->n > 1 && i < p->dims[1]; i++) longest = label_lengths[i] > longest ? label_lengths[i] : longest;
    return forward_variables(p, longest, size);
}
