/* NCCL: collectives; those of small integers really travel.
 *
 * Which collectives travel is decided by type and size alone, so that all ranks decide alike: ranks
 * compare lengths, counts and pickled objects through integers and bytes, and a barrier is a sum of one
 * float. Gradients and parameters are longer floats and hold nothing; what receives them is unknown. As
 * on a real GPU, who only sends does not wait for who receives, and in a group all sends are made
 * before anything is awaited.
 *
 * A process may be asked to stand for all ranks (`alone`). Then nothing is awaited, and the others are
 * taken to give what this rank gives. What only another rank could know is unknown.
 */
#include "emu.h"
#include "launches.h"
#include "nccl.h"
#include "nccl_reduce.h"
#include "values.h"
#include <stdlib.h>
#include <string.h>

#define TRAVELS (16ull << 20) /* bytes from one rank to another */
#define FLOATS_TRAVEL 1024ull

/* --- collectives, in two halves: what a rank gives, and what it gets --- */

enum { BROADCAST, GATHER, ALL_REDUCE, SCATTER, REDUCE, SEND, RECEIVE, ALL_TO_ALL, SPLIT };
typedef struct job {
    int what, type, op, root;
    comm *c;
    uint64_t from, to, count; /* elements from one rank to another */
    uint64_t bytes;
    const void *stream;
    int travels;
    unsigned char *mine; /* this rank's data, and its worth */
    int worth;
    const struct job *twin; /* what another rank sends to this one, where it does what this one does */
} job;

static int put(wire *w, comm *c, int peer, const void *data, uint64_t bytes, uint32_t worth) {
    wire_message m = {worth, bytes, (void *)data};
    return nccl_said(w ? wire_put(w, &m) : WIRE_BROKEN, c, peer);
}

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
    case SEND: return put(nccl_pair(c, c->rank, j->root), c, j->root, j->mine, j->bytes, (uint32_t)j->worth);
    case REDUCE:
        return c->rank == j->root ? 0 : put(nccl_pair(c, c->rank, j->root), c, j->root, j->mine, j->bytes, (uint32_t)j->worth);
    case ALL_TO_ALL:
        for (int i = 0; i < c->size && !code; i++)
            if (i != c->rank) code = put(nccl_pair(c, c->rank, i), c, i, j->mine + (uint64_t)i * j->bytes, j->bytes, (uint32_t)j->worth);
        return code;
    default: return c->size > 1 ? put(nccl_out_to_all(c, c->rank), c, c->rank, j->mine, all, (uint32_t)j->worth) : 0;
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
    wire *w = by_pair ? nccl_pair(c, from, c->rank) : nccl_out_to_all(c, from);
    return nccl_said(w ? wire_get(w, by_pair ? 0 : c->rank - (c->rank > from), m) : WIRE_BROKEN, c, from);
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
        else emu_values_put(j->to, sum, j->bytes, worth == EMU_UNKNOWN ? EMU_BLANK : worth);
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
static void note(const job *j) {
    static const char *const names[] = {"broadcast", "all_gather", "all_reduce", "reduce_scatter", "reduce", "send", "receive", "all_to_all"};
    emu_note(&(emu_record){.kind = EMU_COLLECTIVE, .type = (uint8_t)j->type, .stream = (uint64_t)j->stream,
                           .of = {(int64_t)j->bytes, j->c->size}}, names[j->what]);
}
static int start(job j) {
    if (!j.c) return ncclInvalidArgument;
    j.bytes = j.count * nccl_item(j.type);
    j.travels = j.what == SPLIT || (j.bytes <= (nccl_whole(j.type) ? TRAVELS : FLOATS_TRAVEL) && j.c->size <= WIRE_READERS);
    if (emu_noting && j.what != SPLIT) note(&j);
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
    return start((job){.what = BROADCAST, .stream = s, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .root = root});
}
int ncclBcast(void *at, size_t count, int type, int root, void *c, void *s) { return ncclBroadcast(at, at, count, type, root, c, s); }
int ncclAllGather(const void *from, void *to, size_t count, int type, void *c, void *s) {
    return start((job){.what = GATHER, .stream = s, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type});
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *c, void *s) {
    return start((job){.what = ALL_REDUCE, .stream = s, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .op = op});
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, void *c, void *s) {
    return start((job){.what = SCATTER, .stream = s, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .op = op});
}
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, void *c, void *s) {
    return start((job){.what = REDUCE, .stream = s, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type, .op = op, .root = root});
}
int ncclSend(const void *from, size_t count, int type, int peer, void *c, void *s) {
    return start((job){.what = SEND, .stream = s, .c = c, .from = AT(from), .count = count, .type = type, .root = peer});
}
int ncclRecv(void *to, size_t count, int type, int peer, void *c, void *s) {
    return start((job){.what = RECEIVE, .stream = s, .c = c, .to = AT(to), .count = count, .type = type, .root = peer});
}
int ncclAlltoAll(const void *from, void *to, size_t count, int type, void *c, void *s) {
    return start((job){.what = ALL_TO_ALL, .stream = s, .c = c, .from = AT(from), .to = AT(to), .count = count, .type = type});
}

/* --- parts of a communicator --- */

int ncclCommSplit(void *given, int color, int key, void **out, void *config) {
    (void)config;
    comm *c = given;
    int64_t mine[2] = {color, key}, *all = calloc((size_t)c->size, sizeof mine);
    uint64_t id = nccl_mixed(nccl_mixed(c->id, (uint64_t)++c->splits), (uint64_t)color);
    int code = start((job){.what = SPLIT, .c = c, .from = AT(mine), .to = AT(all), .count = sizeof mine, .type = 0});
    int size = 0, rank = 0;
    for (int i = 0; i < c->size && !code; i++) {
        if (all[2 * i] != color) continue;
        size++;
        rank += all[2 * i + 1] < key || (all[2 * i + 1] == key && i < c->rank);
    }
    free(all);
    *out = NULL;
    return code ? code : color < 0 ? 0 : nccl_make(out, id, size, rank, c->alone);
}
int ncclCommShrink(void *given, int *excluded, int n, void **out, void *config, int flags) {
    (void)config, (void)flags;
    comm *c = given;
    int rank = c->rank;
    for (int i = 0; i < n; i++) {
        if (excluded[i] == c->rank) return ncclInvalidArgument;
        rank -= excluded[i] < c->rank;
    }
    return nccl_make(out, nccl_mixed(nccl_mixed(c->id, (uint64_t)++c->splits), 77), c->size - n, rank, c->alone);
}
