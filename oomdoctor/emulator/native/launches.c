/* Notes of what is launched: see launches.h. */
#define _GNU_SOURCE
#include "launches.h"
#include "emu.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PART 65536ull /* records that are mapped at once: 4 MiB */
#define MOST (64 * PART)

int emu_noting;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[4096];
static emu_record *part;
static uint64_t count; /* of this process */
static int records = -1, names = -1, calls = -1, generation;
static int64_t n_names, n_calls;
static uint32_t n_threads;
static __thread struct { uint32_t thread, call, calls, launches; int generation; } here;

typedef struct { const void *key; const char *name; uint32_t line; } entry;
typedef struct { entry *slots; size_t used, room; } table;
static table kernels, written; /* by pointer: of a kernel; of a name */

static entry *slot_of(table *t, const void *key) {
    if (2 * (t->used + 1) > t->room) {
        table grown = {calloc(t->room ? 2 * t->room : 4096, sizeof(entry)), t->used, t->room ? 2 * t->room : 4096};
        if (!grown.slots) return NULL;
        for (size_t i = 0; i < t->room; i++)
            if (t->slots[i].key) {
                size_t at = ((uintptr_t)t->slots[i].key >> 3) * 0x9E3779B97F4A7C15ull % grown.room;
                while (grown.slots[at].key) at = (at + 1) % grown.room;
                grown.slots[at] = t->slots[i];
            }
        free(t->slots);
        *t = grown;
    }
    size_t at = ((uintptr_t)key >> 3) * 0x9E3779B97F4A7C15ull % t->room;
    while (t->slots[at].key && t->slots[at].key != key) at = (at + 1) % t->room;
    return &t->slots[at];
}

/* --- files --- */

static int opened(const char *what) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s-%d", folder, what, getpid());
    return open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

/* A forked child has files of its own. */
static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    if (part) munmap(part, PART * sizeof *part);
    part = NULL, count = 0, n_names = n_calls = 0, generation++;
    int *files[] = {&records, &names, &calls};
    for (int i = 0; i < 3; i++)
        if (*files[i] >= 0) close(*files[i]), *files[i] = -1;
    free(written.slots);
    written = (table){0};
}

__attribute__((constructor)) static void start(void) {
    const char *given = getenv("OOMDOCTOR_EMULATED_LAUNCHES");
    if (!given || !*given) return;
    snprintf(folder, sizeof folder, "%s", given);
    pthread_atfork(NULL, NULL, in_child);
    emu_noting = 1;
}

static void line_to(int *file, const char *what, const char *text) {
    if (*file < 0 && (*file = opened(what)) < 0) return;
    size_t length = strlen(text);
    char *line = malloc(length + 1);
    if (!line) return;
    memcpy(line, text, length), line[length] = '\n';
    if (write(*file, line, length + 1) < 0) emu_noting = 0; /* the disk is full: the run goes on */
    free(line);
}

static emu_record *next(void) {
    if (count == MOST) return NULL; /* the steps so far will do */
    if (count % PART == 0) {
        if (records < 0 && (records = opened("launches")) < 0) return NULL;
        if (part) munmap(part, PART * sizeof *part);
        part = NULL;
        uint64_t at = count * sizeof *part, size = PART * sizeof *part;
        if (ftruncate(records, (off_t)(at + size))) return NULL;
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, records, (off_t)at);
        if (mapped == MAP_FAILED) return NULL;
        part = mapped;
    }
    return part ? &part[count++ % PART] : NULL;
}

/* --- notes --- */

static uint32_t line_of(const char *name) {
    entry *e = slot_of(&written, name);
    if (!e) return 0;
    if (!e->key) {
        *e = (entry){name, name, (uint32_t)++n_names};
        written.used++;
        line_to(&names, "names", name);
    }
    return e->line;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void emu_note(const emu_record *launch, const char *name) {
    if (!emu_noting) return;
    pthread_mutex_lock(&lock);
    if (!here.thread || here.generation != generation) here.thread = ++n_threads, here.generation = generation;
    emu_record *r = next();
    if (r) {
        emu_record made = *launch;
        made.at_ns = now_ns();
        made.thread = here.thread;
        if (made.kind != EMU_CALL) made.call = here.call;
        made.name = name ? line_of(name) : 0;
        *r = made;
        here.launches += made.kind < EMU_CALL;
    }
    pthread_mutex_unlock(&lock);
}

void emu_note_kernel(const void *kernel, const unsigned grid[3], const unsigned block[3], const void *stream) {
    if (!emu_noting) return;
    emu_record r = {.kind = EMU_KERNEL, .stream = (uint64_t)(uintptr_t)stream};
    r.of[0] = (int64_t)grid[0] | (int64_t)grid[1] << 32;
    r.of[1] = (int64_t)grid[2] | (int64_t)block[0] << 32;
    r.of[2] = (int64_t)block[1] | (int64_t)block[2] << 32;
    emu_note(&r, emu_kernel_name(kernel));
}

void emu_note_graph(int what, const void *first, const void *second, const void *stream) {
    if (!emu_noting) return;
    emu_note(&(emu_record){.kind = EMU_GRAPH, .what = (uint16_t)what, .stream = (uint64_t)(uintptr_t)stream,
                           .of = {(int64_t)(uintptr_t)first, (int64_t)(uintptr_t)second}}, NULL);
}

void emu_note_library(const char *name) {
    static const char *const parts[] = {"cudnnBackendExecute", "cudnnRNNForward", "cudnnRNNBackward",
        "cudnnBatchNormalization", "cufftExec", "cufftXtExec", "SpMM", "SpMV", "SDDMM", "SpGEMM_compute", "gemm",
        "gemv", "trsm", "syrk", "ger", "cublasLtMatrixTransform", "cusparseLtMatmul", "potrf", "getrf", "geqrf",
        "syevd", "gesvd"};
    if (!emu_noting || strstr(name, "ufferSize") || strstr(name, "Create") || strstr(name, "Get")) return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i])) {
            emu_note(&(emu_record){.kind = EMU_LIBRARY}, name);
            return;
        }
}

void emu_note_mark(const char *phase, int64_t step) {
    if (!emu_noting) return;
    emu_record r = {.kind = EMU_MARK, .what = phase ? 1 : 2, .of = {step}};
    if (!phase) return emu_note(&r, NULL);
    /* Names are looked up by where they lie: phases are few. */
    static char *phases[64];
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < 63 && phases[i] && strcmp(phases[i], phase)) i++;
    if (!phases[i]) phases[i] = strdup(phase);
    pthread_mutex_unlock(&lock);
    emu_note(&r, phases[i]);
}

/* --- kernels by name --- */

int emu_names_kernels(void) {
    static int asked = -1;
    if (asked < 0) {
        const char *trace = getenv("OOMDOCTOR_EMULATED_TRACE");
        asked = emu_noting || (trace && atoi(trace) >= 3);
    }
    return asked;
}

void emu_name_kernel(const void *kernel, const char *name) {
    pthread_mutex_lock(&lock);
    entry *e = slot_of(&kernels, kernel);
    if (e) kernels.used += !e->key, *e = (entry){kernel, name, 0};
    pthread_mutex_unlock(&lock);
}

const char *emu_kernel_name(const void *kernel) {
    pthread_mutex_lock(&lock);
    entry *e = kernels.room ? slot_of(&kernels, kernel) : NULL;
    const char *name = e && e->key ? e->name : NULL;
    pthread_mutex_unlock(&lock);
    return name;
}

void *emu_named_kernel(const char *name) {
    void *kernel = calloc(1, 64);
    char *kept = strdup(name);
    if (kernel && kept) emu_name_kernel(kernel, kept);
    return kernel;
}

/* --- operators --- */

void emu_call_begins(void) { here.call = ++here.calls, here.launches = 0; }
int emu_call_launches(void) { return (int)here.launches; }
void emu_call_dropped(void) { here.call = 0; }
void emu_call_ended(int64_t line) {
    emu_note(&(emu_record){.kind = EMU_CALL, .call = here.call, .of = {line, here.launches}}, NULL);
    here.call = 0;
}
int64_t emu_call_line(const char *text) {
    pthread_mutex_lock(&lock);
    int64_t line = ++n_calls;
    line_to(&calls, "calls", text);
    pthread_mutex_unlock(&lock);
    return line;
}
int emu_note_generation(void) { return generation; }
