/* A wire is a file in the session folder that writer and readers map: a ring of slots. Nobody waits
 * for a process that is gone, nor for ever. */
#define _GNU_SOURCE
#include "nccl_wire.h"
#include "emu.h"
#include "values.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 256
#define INLINE 1024
#define PATIENCE 600.0 /* seconds, as torch waits for a collective */
#define GRACE 5.0      /* seconds in which a launcher may end this process, as with a real GPU */

typedef struct {
    uint64_t bytes;
    uint32_t worth;
    _Atomic uint32_t left; /* readers that have not read it */
    char data[INLINE];
} slot;
typedef struct {
    _Atomic uint64_t written, read[WIRE_READERS];
    _Atomic int64_t writer, reader[WIRE_READERS]; /* process ids; 0: not there yet */
    slot slots[SLOTS];
} shared;
struct wire {
    shared *at;
    int readers;
    char path[4300];
};

wire *wire_open(const char *name, int readers) {
    wire *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->readers = readers;
    snprintf(w->path, sizeof w->path, "%s/%s", emu_session(), name);
    int fd = open(w->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof(shared)) == 0)
        at = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (at == MAP_FAILED) {
        free(w);
        return NULL;
    }
    w->at = at;
    return w;
}
void wire_close(wire *w) {
    if (!w) return;
    munmap(w->at, sizeof(shared));
    free(w);
}
void wire_i_write(wire *w) { atomic_store(&w->at->writer, getpid()); }
void wire_i_read(wire *w, int reader) { atomic_store(&w->at->reader[reader], getpid()); }

void wire_same_writer(wire *w, const wire *as) {
    int64_t nobody = 0, pid = as ? atomic_load(&as->at->writer) : 0;
    if (pid) atomic_compare_exchange_strong(&w->at->writer, &nobody, pid);
}

/* A wait in short naps: `turns` of them, since when, and when the peer was first seen to have ended. */
typedef struct { int turns; double since, ended; } waiting;

/* One nap of a wait for a message of `peer`, 0: whose process is not there yet. */
static int wait_for(waiting *w, int64_t peer) {
    if (++w->turns < 64) return WIRE_OK;
    struct timespec nap = {0, w->turns < 2000 ? 20000 : 500000};
    nanosleep(&nap, NULL);
    if (w->turns % 256) return WIRE_OK;
    double now = emu_now();
    if (peer && !w->ended && emu_has_ended((int)peer)) w->ended = now;
    if (w->ended && now - w->ended > GRACE) return WIRE_GONE;
    return now - w->since > PATIENCE ? WIRE_LATE : WIRE_OK;
}

static void side_path(const wire *w, uint64_t number, char *out, size_t n) {
    snprintf(out, n, "%s-%llu", w->path, (unsigned long long)number);
}

static int all_write(int fd, const char *data, uint64_t n) {
    while (n) {
        ssize_t done = write(fd, data, n);
        if (done <= 0) return -1;
        data += done, n -= (uint64_t)done;
    }
    return 0;
}

int wire_put(wire *w, const wire_message *m) {
    shared *s = w->at;
    uint64_t number = atomic_load(&s->written);
    for (int i = 0; i < w->readers; i++) {
        waiting wait = {.since = emu_now()};
        while (number - atomic_load(&s->read[i]) >= SLOTS) {
            int code = wait_for(&wait, atomic_load(&s->reader[i]));
            if (code) return code;
        }
    }
    slot *to = &s->slots[number % SLOTS];
    to->bytes = m->bytes, to->worth = m->worth;
    atomic_store(&to->left, (uint32_t)w->readers);
    if (m->worth != EMU_UNKNOWN && m->bytes > INLINE) {
        char path[4400];
        side_path(w, number, path, sizeof path);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        int bad = fd < 0 || all_write(fd, m->data, m->bytes);
        if (fd >= 0) close(fd);
        if (bad) return WIRE_BROKEN;
    } else if (m->worth != EMU_UNKNOWN) memcpy(to->data, m->data, m->bytes);
    atomic_store(&s->written, number + 1);
    return WIRE_OK;
}

static int take_side(const wire *w, uint64_t number, wire_message *m, int last) {
    char path[4400];
    side_path(w, number, path, sizeof path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t done = 0;
    while (fd >= 0 && done < m->bytes) {
        ssize_t n = read(fd, (char *)m->data + done, m->bytes - done);
        if (n <= 0) break;
        done += (uint64_t)n;
    }
    if (fd >= 0) close(fd);
    if (last) unlink(path);
    return done == m->bytes ? WIRE_OK : WIRE_BROKEN;
}

int wire_get(wire *w, int reader, wire_message *m) {
    shared *s = w->at;
    uint64_t number = atomic_load(&s->read[reader]);
    waiting wait = {.since = emu_now()};
    while (atomic_load(&s->written) <= number) {
        int code = wait_for(&wait, atomic_load(&s->writer));
        if (code && atomic_load(&s->written) <= number) return code;
    }
    slot *from = &s->slots[number % SLOTS];
    m->bytes = from->bytes, m->worth = from->worth, m->data = NULL;
    int code = WIRE_OK;
    if (m->worth != EMU_UNKNOWN && m->bytes) {
        m->data = malloc(m->bytes);
        if (!m->data) return WIRE_BROKEN;
        if (m->bytes <= INLINE) memcpy(m->data, from->data, m->bytes);
        else code = take_side(w, number, m, atomic_load(&from->left) == 1);
    }
    atomic_fetch_sub(&from->left, 1);
    atomic_store(&s->read[reader], number + 1);
    return code;
}
