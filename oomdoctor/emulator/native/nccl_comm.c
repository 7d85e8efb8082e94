/* NCCL: communicators, their names and the wires between their ranks. */
#include "emu.h"
#include "nccl.h"
#include "versions.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { char internal[128]; } unique_id;

static __thread char last_words[256];

uint64_t nccl_mixed(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0xbf58476d1ce4e5b9ull);
    x = (x ^ (x >> 31)) * 0x94d049bb133111ebull;
    return x ^ (x >> 29);
}
int ncclGetVersion(int *v) { *v = NCCL_VERSION; return 0; }
int ncclGetUniqueId(unique_id *id) {
    static atomic_uint made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t number = nccl_mixed(nccl_mixed((uint64_t)getpid(), (uint64_t)now.tv_nsec), nccl_mixed((uint64_t)now.tv_sec, made++));
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &number, sizeof number);
    return 0;
}
int nccl_make(void **out, uint64_t id, int size, int rank, int alone) {
    if (size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
    comm *c = calloc(1, sizeof *c);
    *c = (comm){.id = id, .size = size, .rank = rank, .device = *emu_current(), .alone = alone};
    c->to_all = calloc((size_t)size, sizeof *c->to_all);
    c->sends = calloc((size_t)size, sizeof *c->sends);
    c->gets = calloc((size_t)size, sizeof *c->gets);
    *out = c;
    emu_communicator(emu_physical(c->device), size);
    return !alone && size > 1 && size <= WIRE_READERS && !nccl_out_to_all(c, rank) ? ncclSystemError : 0; /* "I am here" */
}
static uint64_t number_of(unique_id id) {
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    return number;
}
int ncclCommInitRank(void **out, int n, unique_id id, int rank) { return nccl_make(out, number_of(id), n, rank, emu_the_card()->alone); }
int ncclCommInitRankConfig(void **out, int n, unique_id id, int rank, void *config) {
    (void)config;
    return nccl_make(out, number_of(id), n, rank, emu_the_card()->alone);
}
int ncclCommInitRankScalable(void **out, int n, int rank, int ids, unique_id *id, void *config) {
    (void)ids, (void)config;
    return nccl_make(out, number_of(*id), n, rank, emu_the_card()->alone);
}
int ncclCommInitAll(void **out, int n, const int *devices) {
    unique_id id;
    ncclGetUniqueId(&id);
    int here = *emu_current(), code = 0;
    for (int i = 0; i < n && !code; i++) {
        *emu_current() = devices ? devices[i] : i;
        code = nccl_make(&out[i], number_of(id), n, i, 0);
    }
    *emu_current() = here;
    return code;
}
int ncclCommCount(void *c, int *n) { *n = ((comm *)c)->size; return 0; }
int ncclCommUserRank(void *c, int *rank) { *rank = ((comm *)c)->rank; return 0; }
int ncclCommCuDevice(void *c, int *d) { *d = ((comm *)c)->device; return 0; }
int ncclCommGetAsyncError(void *c, int *code) { (void)c; *code = 0; return 0; }
int ncclCommDestroy(void *given) {
    comm *c = given;
    if (!c) return 0;
    for (int i = 0; i < c->size; i++) wire_close(c->to_all[i]), wire_close(c->sends[i]), wire_close(c->gets[i]);
    free(c->to_all), free(c->sends), free(c->gets), free(c);
    return 0;
}
int ncclCommAbort(void *c) { (void)c; return 0; } /* another thread may still use it */
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int where, void *c) {
    (void)scalar, (void)type, (void)where, (void)c;
    *op = 5;
    return 0;
}
const char *ncclGetErrorString(int code) {
    return code == ncclSuccess ? "no error" : code == ncclRemoteError ? "remote process exited or there was a network error"
           : code == ncclSystemError ? "unhandled system error" : "invalid argument";
}
const char *ncclGetLastError(void *c) { (void)c; return last_words; }

/* --- wires --- */

wire *nccl_out_to_all(comm *c, int from) {
    if (!c->to_all[from]) {
        char name[96];
        snprintf(name, sizeof name, "nccl-%016llx-%d", (unsigned long long)c->id, from);
        c->to_all[from] = wire_open(name, c->size - 1);
        if (c->to_all[from] && from == c->rank) wire_i_write(c->to_all[from]);
        else if (c->to_all[from]) wire_i_read(c->to_all[from], c->rank - (c->rank > from));
    }
    return c->to_all[from];
}
wire *nccl_pair(comm *c, int from, int to) {
    wire **at = from == c->rank ? &c->sends[to] : &c->gets[from];
    if (!*at) {
        char name[96];
        snprintf(name, sizeof name, "nccl-%016llx-%d-%d", (unsigned long long)c->id, from, to);
        *at = wire_open(name, 1);
        if (*at && from == c->rank) wire_i_write(*at);
        if (*at && to == c->rank) wire_i_read(*at, 0);
        if (*at && from != c->rank) wire_same_writer(*at, nccl_out_to_all(c, from));
    }
    return *at;
}
int nccl_said(int code, const comm *c, int peer) {
    if (code == WIRE_OK) return 0;
    snprintf(last_words, sizeof last_words,
             code == WIRE_GONE ? "emulated: the process of rank %d of %d is gone"
             : code == WIRE_LATE ? "emulated: rank %d of %d did not take part within 600 s"
                                 : "emulated: cannot exchange data with rank %d of %d in the session folder", peer, c->size);
    return code == WIRE_BROKEN ? ncclSystemError : ncclRemoteError;
}
