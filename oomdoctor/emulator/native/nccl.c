/* NCCL: communicators, and collectives of small integers that really travel.
 *
 * Which collectives travel is decided by type and size alone, so that all ranks decide alike: ranks
 * compare lengths, counts and pickled objects through integers and bytes, and a barrier is a sum of one
 * float. Gradients and parameters are longer floats and hold nothing; what receives them is unknown. As on a real GPU, who only sends does
 * not wait for who receives, and in a group all sends are made before anything is awaited.
 *
 * A process may be asked to stand for all ranks (`alone`). Then nothing is awaited, and the others are
 * taken to give what this rank gives. What only another rank could know is unknown.
 */
#include "emu.h"
#include "nccl_reduce.h"
#include "nccl_wire.h"
#include "values.h"
#include "versions.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TRAVELS (16ull << 20) /* bytes from one rank to another */
#define FLOATS_TRAVEL 1024ull
enum { ncclSuccess = 0, ncclSystemError = 2, ncclInvalidArgument = 4, ncclRemoteError = 6 };

typedef struct { char internal[128]; } unique_id;
typedef struct {
    uint64_t id;
    int size, rank, device, splits;
    int alone; /* no other rank has a process */
    wire **to_all;         /* from each rank to all others */
    wire **sends, **gets; /* between this rank and each other */
} comm;

static __thread char last_words[256];

/* --- communicators --- */

static uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0xbf58476d1ce4e5b9ull);
    x = (x ^ (x >> 31)) * 0x94d049bb133111ebull;
    return x ^ (x >> 29);
}
int ncclGetVersion(int *v) { *v = NCCL_VERSION; return 0; }
int ncclGetUniqueId(unique_id *id) {
    static atomic_uint made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t number = mixed(mixed((uint64_t)getpid(), (uint64_t)now.tv_nsec), mixed((uint64_t)now.tv_sec, made++));
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &number, sizeof number);
    return 0;
}
static wire *out_to_all(comm *c, int from);
static int make(void **out, uint64_t id, int size, int rank, int alone) {
    if (size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
    comm *c = calloc(1, sizeof *c);
    *c = (comm){.id = id, .size = size, .rank = rank, .device = *emu_current(), .alone = alone};
    c->to_all = calloc((size_t)size, sizeof *c->to_all);
    c->sends = calloc((size_t)size, sizeof *c->sends);
    c->gets = calloc((size_t)size, sizeof *c->gets);
    *out = c;
    return !alone && size > 1 && size <= WIRE_READERS && !out_to_all(c, rank) ? ncclSystemError : 0; /* "I am here" */
}
static uint64_t number_of(unique_id id) {
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    return number;
}
int ncclCommInitRank(void **out, int n, unique_id id, int rank) { return make(out, number_of(id), n, rank, emu_the_card()->alone); }
int ncclCommInitRankConfig(void **out, int n, unique_id id, int rank, void *config) {
    (void)config;
    return make(out, number_of(id), n, rank, emu_the_card()->alone);
}
int ncclCommInitRankScalable(void **out, int n, int rank, int ids, unique_id *id, void *config) {
    (void)ids, (void)config;
    return make(out, number_of(*id), n, rank, emu_the_card()->alone);
}
int ncclCommInitAll(void **out, int n, const int *devices) {
    unique_id id;
    ncclGetUniqueId(&id);
    for (int i = 0; i < n; i++) {
        int code = make(&out[i], number_of(id), n, i, 0);
        if (code) return code;
        ((comm *)out[i])->device = devices ? devices[i] : i;
    }
    return 0;
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

static wire *out_to_all(comm *c, int from) {
    if (!c->to_all[from]) {
        char name[96];
        snprintf(name, sizeof name, "nccl-%016llx-%d", (unsigned long long)c->id, from);
        c->to_all[from] = wire_open(name, c->size - 1);
        if (c->to_all[from] && from == c->rank) wire_i_write(c->to_all[from]);
        else if (c->to_all[from]) wire_i_read(c->to_all[from], c->rank - (c->rank > from));
    }
    return c->to_all[from];
}
static wire *pair(comm *c, int from, int to) {
    wire **at = from == c->rank ? &c->sends[to] : &c->gets[from];
    if (!*at) {
        char name[96];
        snprintf(name, sizeof name, "nccl-%016llx-%d-%d", (unsigned long long)c->id, from, to);
        *at = wire_open(name, 1);
        if (*at && from == c->rank) wire_i_write(*at);
        if (*at && to == c->rank) wire_i_read(*at, 0);
        if (*at && from != c->rank) wire_same_writer(*at, out_to_all(c, from));
    }
    return *at;
}
static int said(int code, const comm *c, int peer) {
    if (code == WIRE_OK) return 0;
    snprintf(last_words, sizeof last_words,
             code == WIRE_GONE ? "emulated: the process of rank %d of %d is gone"
             : code == WIRE_LATE ? "emulated: rank %d of %d did not take part within 600 s"
                                 : "emulated: cannot exchange data with rank %d of %d in the session folder", peer, c->size);
    return code == WIRE_BROKEN ? ncclSystemError : ncclRemoteError;
}
static int put(wire *w, comm *c, int peer, const void *data, uint64_t bytes, uint32_t worth) {
    wire_message m = {worth, bytes, (void *)data};
    return said(w ? wire_put(w, &m) : WIRE_BROKEN, c, peer);
}

/* --- collectives, in two halves: what a rank gives, and what it gets --- */

enum { BROADCAST, GATHER, ALL_REDUCE, SCATTER, REDUCE, SEND, RECEIVE, ALL_TO_ALL, SPLIT };
typedef struct job {
    int what, type, op, root;
    comm *c;
    uint64_t from, to, count; /* elements from one rank to another */
    uint64_t bytes;
    int travels;
    unsigned char *mine; /* this rank's data, and its worth */
    int worth;
    const struct job *twin; /* what another rank sends to this one, where it does what this one does */
} job;

static uint64_t parts_given(const job *j) { return j->what == SCATTER || j->what == ALL_TO_ALL ? (uint64_t)j->c->size : 1; }

static int give(job *j) {
    comm *c = j->c;
    uint64_t all = j->bytes * parts_given(j);
    int gives = j->what != RECEIVE && (j->what != BROADCAST || c->rank == j->root);
    if (!j->travels || !gives || !all) return 0;
    if (!(j->mine = malloc(all))) return ncclSystemError;
    if (j->what == SPLIT) memcpy(j->mine, (void *)j->from, all), j->worth = EMU_KNOWN;
    else j->worth = emu_values_take(j->mine, j->from, all);
    int code = 0;
    if (c->alone) return 0;
    switch (j->what) {
    case SEND: return put(pair(c, c->rank, j->root), c, j->root, j->mine, j->bytes, (uint32_t)j->worth);
    case REDUCE:
        return c->rank == j->root ? 0 : put(pair(c, c->rank, j->root), c, j->root, j->mine, j->bytes, (uint32_t)j->worth);
    case ALL_TO_ALL:
        for (int i = 0; i < c->size && !code; i++)
            if (i != c->rank) code = put(pair(c, c->rank, i), c, i, j->mine + (uint64_t)i * j->bytes, j->bytes, (uint32_t)j->worth);
        return code;
    default: return c->size > 1 ? put(out_to_all(c, c->rank), c, c->rank, j->mine, all, (uint32_t)j->worth) : 0;
    }
}

static int awaits_one(const job *j) { return j->what == RECEIVE || (j->what == BROADCAST && j->root != j->c->rank); }

/* The message of rank `from` to this one; this rank's own data if it is this one. */
static int message_of(job *j, int from, wire_message *m) {
    comm *c = j->c;
    if (c->alone && awaits_one(j)) {
        *m = j->twin ? (wire_message){(uint32_t)j->twin->worth, j->bytes, j->twin->mine} : (wire_message){0, 0, NULL};
        return 0;
    }
    if (c->alone || (from == c->rank && j->what != RECEIVE)) {
        *m = (wire_message){(uint32_t)j->worth, j->bytes * parts_given(j), j->mine};
        return 0;
    }
    int by_pair = j->what == RECEIVE || j->what == REDUCE || j->what == ALL_TO_ALL;
    wire *w = by_pair ? pair(c, from, c->rank) : out_to_all(c, from);
    return said(w ? wire_get(w, by_pair ? 0 : c->rank - (c->rank > from), m) : WIRE_BROKEN, c, from);
}

static void land(uint64_t to, const wire_message *m, uint64_t offset, uint64_t bytes) {
    if (!m->data || offset + bytes > m->bytes) emu_values_drop(to, bytes);
    else emu_values_put(to, (unsigned char *)m->data + offset, bytes, (int)m->worth);
}

static int get(job *j) {
    comm *c = j->c;
    if (!j->travels) { /* floats: every rank's own part stays what it is where it is in place */
        if (j->what == BROADCAST && c->rank == j->root) emu_values_move(j->to, j->from, j->bytes);
        else if (j->what == REDUCE ? c->rank == j->root : j->what != SEND)
            emu_values_drop(j->to, j->bytes * (j->what == GATHER || j->what == ALL_TO_ALL ? (uint64_t)c->size : 1));
        return 0;
    }
    if (!j->bytes || j->what == SEND || (j->what == REDUCE && c->rank != j->root)) return 0;
    int first = 0, last = c->size - 1, code = 0;
    if (j->what == BROADCAST || j->what == RECEIVE) first = last = j->root;
    int reduces = j->what == ALL_REDUCE || j->what == SCATTER || j->what == REDUCE, worth = EMU_KNOWN;
    unsigned char *sum = reduces ? calloc(1, j->bytes) : NULL;
    for (int i = first; i <= last; i++) {
        wire_message m = {0, 0, NULL};
        if ((code = message_of(j, i, &m))) break;
        uint64_t offset = j->what == SCATTER ? (uint64_t)c->rank * j->bytes : 0;
        if (j->what == ALL_TO_ALL && (c->alone || i == c->rank)) offset = (uint64_t)c->rank * j->bytes;
        if (reduces) {
            if ((int)m.worth < worth) worth = (int)m.worth;
            if (nccl_sums(j->type)) nccl_reduce(sum, m.data && offset + j->bytes <= m.bytes ? (unsigned char *)m.data + offset : NULL, j->count,
                        j->type, j->op, i == first);
        } else if (j->what == SPLIT) memcpy((void *)(j->to + (uint64_t)i * j->bytes), m.data, j->bytes);
        else land(j->to + (j->what == GATHER || j->what == ALL_TO_ALL ? (uint64_t)i * j->bytes : 0), &m, offset, j->bytes);
        if (!c->alone && m.data != j->mine) free(m.data);
    }
    if (reduces && !code) {
        if (j->op == 4 && nccl_sums(j->type)) nccl_divide(sum, j->count, j->type, c->size);
        if (!nccl_sums(j->type) || (worth == EMU_UNKNOWN && !nccl_whole(j->type))) emu_values_drop(j->to, j->bytes);
        else emu_values_put(j->to, sum, j->bytes, worth == EMU_UNKNOWN ? EMU_ASSUMED : worth);
    }
    free(sum);
    return code;
}

/* --- groups --- */

static __thread int depth;
static __thread job *queue;
static __thread size_t queued, room;

/* In the same group, others send to this rank what it sends to itself, or else to anybody, and
 * broadcast what it broadcasts. */
static const job *twin_of(const job *taken, const job *jobs, size_t n) {
    int gives = taken->what == RECEIVE ? SEND : BROADCAST;
    const job *found = NULL;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].what != gives || jobs[i].c != taken->c || jobs[i].bytes != taken->bytes || !jobs[i].mine) continue;
        if (!found || jobs[i].root == taken->c->rank) found = &jobs[i];
    }
    return found;
}
static int run(job *jobs, size_t n) {
    int code = 0;
    for (size_t i = 0; i < n && !code; i++) code = give(&jobs[i]);
    for (size_t i = 0; i < n && !code; i++) {
        if (jobs[i].c->alone && awaits_one(&jobs[i])) jobs[i].twin = twin_of(&jobs[i], jobs, n);
        code = get(&jobs[i]);
    }
    for (size_t i = 0; i < n; i++) free(jobs[i].mine);
    return code;
}
static int start(job j) {
    if (!j.c) return ncclInvalidArgument;
    j.bytes = j.count * nccl_item(j.type);
    j.travels = j.what == SPLIT || (j.bytes <= (nccl_whole(j.type) ? TRAVELS : FLOATS_TRAVEL) && j.c->size <= WIRE_READERS);
    if (!depth || j.what == SPLIT) return run(&j, 1);
    if (queued == room) {
        room = room ? 2 * room : 64;
        queue = realloc(queue, room * sizeof *queue);
    }
    queue[queued++] = j;
    return 0;
}
int ncclGroupStart(void) { depth++; return 0; }
int ncclGroupEnd(void) {
    if (depth && --depth) return 0;
    size_t n = queued;
    queued = 0;
    return run(queue, n);
}

#define AT(p) ((uint64_t)(p))
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *c, void *s) {
    (void)s;
    return start((job){.what = BROADCAST, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .root = root});
}
int ncclBcast(void *at, size_t count, int type, int root, void *c, void *s) { return ncclBroadcast(at, at, count, type, root, c, s); }
int ncclAllGather(const void *from, void *to, size_t count, int type, void *c, void *s) {
    (void)s;
    return start((job){.what = GATHER, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type});
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *c, void *s) {
    (void)s;
    return start((job){.what = ALL_REDUCE, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .op = op});
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, void *c, void *s) {
    (void)s;
    return start((job){.what = SCATTER, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .op = op});
}
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, void *c, void *s) {
    (void)s;
    return start((job){.what = REDUCE, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .op = op, .root = root});
}
int ncclSend(const void *from, size_t count, int type, int peer, void *c, void *s) {
    (void)s;
    return start((job){.what = SEND, .c = c, .from = AT(from), .count = count, .type = type, .root = peer});
}
int ncclRecv(void *to, size_t count, int type, int peer, void *c, void *s) {
    (void)s;
    return start((job){.what = RECEIVE, .c = c, .to = AT(to), .count = count, .type = type, .root = peer});
}
int ncclAlltoAll(const void *from, void *to, size_t count, int type, void *c, void *s) {
    (void)s;
    return start((job){.what = ALL_TO_ALL, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type});
}

/* --- parts of a communicator --- */

int ncclCommSplit(void *given, int color, int key, void **out, void *config) {
    (void)config;
    comm *c = given;
    int64_t mine[2] = {color, key}, *all = calloc((size_t)c->size, sizeof mine);
    uint64_t id = mixed(mixed(c->id, (uint64_t)++c->splits), (uint64_t)color);
    int code = start((job){.what = SPLIT, .c = c, .from = AT(mine), .to = AT(all), .count = sizeof mine, .type = 0});
    int size = 0, rank = 0;
    for (int i = 0; i < c->size && !code; i++) {
        if (all[2 * i] != color) continue;
        size++;
        rank += all[2 * i + 1] < key || (all[2 * i + 1] == key && i < c->rank);
    }
    free(all);
    *out = NULL;
    return code ? code : color < 0 ? 0 : make(out, id, size, rank, c->alone);
}
int ncclCommShrink(void *given, int *excluded, int n, void **out, void *config, int flags) {
    (void)config, (void)flags;
    comm *c = given;
    int rank = c->rank;
    for (int i = 0; i < n; i++) {
        if (excluded[i] == c->rank) return ncclInvalidArgument;
        rank -= excluded[i] < c->rank;
    }
    return make(out, mixed(mixed(c->id, (uint64_t)++c->splits), 77), c->size - n, rank, c->alone);
}
