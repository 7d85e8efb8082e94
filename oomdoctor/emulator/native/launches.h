/* Notes of what is launched on the emulated GPU: kernels, products, copies, collectives.
 *
 * They are made if OOMDOCTOR_EMULATED_LAUNCHES names a folder: `launches-PID` has a record for each
 * launch in the order of time, `names-PID` and `calls-PID` a line for each name and each kind of
 * operator call that records number. Records of a process that is killed are whole up to its end.
 * records/job/launches.py says what the fields mean, and reads them.
 */
#ifndef EMU_LAUNCHES_H
#define EMU_LAUNCHES_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum emu_launch {
    EMU_KERNEL = 1, /* grid and block */
    EMU_PRODUCT,    /* m, n, k, batch, of matrices that are stored by columns */
    EMU_COPY,       /* bytes, direction */
    EMU_FILL,       /* bytes */
    EMU_COLLECTIVE, /* bytes of a rank, ranks, what */
    EMU_LIBRARY,    /* another function of a library that launches kernels */
    EMU_GRAPH,      /* a CUDA graph is captured, made to be run, run: see below */
    EMU_CALL,       /* an operator has returned: its line in `calls`, its launches */
    EMU_MARK        /* a phase of the training (its line in `names`), or a step has ended */
};

typedef struct {
    uint64_t at_ns; /* of the monotonic clock */
    uint32_t thread, call; /* counted from 1; call 0: outside of any operator */
    uint8_t kind, type;    /* cudaDataType of what is multiplied; ncclDataType_t */
    uint16_t what;         /* a product: transposed (1: a, 2: b), 4: TF32, and 8 x epilogue; else by kind */
    uint32_t name;         /* a line of `names`, counted from 1; 0: no name */
    uint64_t stream;
    int64_t of[4];
} emu_record; /* 64 bytes */

/* A graph's `what`. Numbers: the graph, when its capture has ended; what can be run and its graph; what
 * is run. */
enum { EMU_CAPTURE_BEGINS = 1, EMU_CAPTURE_ENDS, EMU_GRAPH_MADE, EMU_GRAPH_RUN };
enum { EMU_TF32 = 4, EMU_EPILOGUE = 8 }; /* of a product's `what` */
enum { EMU_TO_DEVICE = 1, EMU_TO_HOST, EMU_WITHIN, EMU_ON_HOST }; /* a copy's `what` */

extern int emu_noting; /* whether launches are noted */
void emu_note(const emu_record *launch, const char *name); /* the name must stay where it is */
void emu_note_kernel(const void *kernel, const unsigned grid[3], const unsigned block[3], const void *stream);
void emu_note_graph(int what, const void *first, const void *second, const void *stream);
void emu_note_library(const char *name); /* if it is one that launches kernels */
void emu_note_mark(const char *phase, int64_t step); /* a phase begins; NULL: a step has ended */

/* The name of a kernel, by the pointer with which it is launched. */
void emu_name_kernel(const void *kernel, const char *name);
const char *emu_kernel_name(const void *kernel); /* NULL: not known */
void *emu_named_kernel(const char *name); /* a new pointer for one that is loaded at run time */
int emu_names_kernels(void); /* may be asked before the session starts */

/* Operators, by values.cpp, in the thread that runs them. The generation changes in a forked child:
 * numbers of calls begin anew. */
void emu_call_begins(void);
int emu_call_launches(void); /* in the call so far */
void emu_call_ended(int64_t line);
void emu_call_dropped(void);
int64_t emu_call_line(const char *text);
int emu_note_generation(void);

#ifdef __cplusplus
}
#endif
#endif
