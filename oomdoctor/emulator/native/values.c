/* What the bytes of device memory are worth: copies, memsets, read-backs. See values.h. */
#define _GNU_SOURCE
#include "values_map.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE_READ (4ull << 20)  /* copies to the host of this size or more give up its pages */
#define KEPT_COPY (1ull << 20)   /* a copy from the host outside of any operator */
#define WRITTEN_FILL (1ull << 16) /* a larger memset is a splat */
#define HELD_LIMIT (256ull << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t arena, arena_end;
static emu_values_counters counters;
static _Atomic(emu_values_hook) hook;
static atomic_int capturing;
static __thread unsigned char expected[8];
static __thread int expecting, expected_worth;
static __thread size_t kept_copy;
static __thread int holds;
static __thread const char *reader;
static __thread int reads, read_type;
static atomic_int computing; /* values.cpp is there */

static int inside(uint64_t at, size_t n) { return arena && at >= arena && n <= arena_end - at && at < arena_end; }

/* Makes room for new values: what is old and large is given up. Changes the map. */
static int affordable(size_t n) {
    if (map_held + n <= HELD_LIMIT) return 1;
    counters.refused++;
    if (n <= HELD_LIMIT / 4) map_give_up(HELD_LIMIT / 2);
    return map_held + n <= HELD_LIMIT;
}

void emu_values_arena(uint64_t base, uint64_t size) {
    arena = base, arena_end = base + size;
}

void emu_values_reset(void) {
    pthread_mutex_init(&lock, NULL);
    map_count = 0;
    memset(&counters, 0, sizeof counters);
    map_held = 0;
    expecting = 0;
}

int emu_values_ready(void) { return arena != 0; }
int emu_values_inside(uint64_t at, size_t n) { return inside(at, n); }
void emu_values_replay(int now) { atomic_store(&capturing, now); }
int emu_values_capturing(void) { return atomic_load_explicit(&capturing, memory_order_relaxed); }

void emu_values_drop(uint64_t at, size_t n) {
    if (!n || !inside(at, n)) return;
    pthread_mutex_lock(&lock);
    map_cut(at, at + n, 0);
    pthread_mutex_unlock(&lock);
}

void emu_values_put(uint64_t to, const void *data, size_t n, int worth) {
    if (!n || !inside(to, n)) return;
    pthread_mutex_lock(&lock);
    int keep = worth != EMU_UNKNOWN && affordable(n);
    map_cut(to, to + n, keep);
    if (keep) {
        memcpy((void *)to, data, n);
        map_put((range){.at = to, .end = to + n, .worth = (uint8_t)worth});
    }
    pthread_mutex_unlock(&lock);
}

void emu_values_write(uint64_t to, const void *data, size_t n) {
    if (n <= (kept_copy ? kept_copy : KEPT_COPY)) emu_values_put(to, data, n, EMU_KNOWN);
    else emu_values_drop(to, n);
}

void emu_values_move(uint64_t to, uint64_t from, size_t n) {
    if (!n || to == from || !inside(to, n)) return;
    if (!inside(from, n)) {
        emu_values_drop(to, n);
        return;
    }
    pthread_mutex_lock(&lock);
    int can_keep = affordable(n); /* before the map is read */
    /* A copy of the map_ranges first: putting moves them, and source and target may overlap. */
    size_t first = map_first_after(from), parts = 0;
    while (first + parts < map_count && map_ranges[first + parts].at < from + n) parts++;
    range *copy = parts ? malloc(parts * sizeof *copy) : NULL;
    unsigned char **data = parts ? calloc(parts, sizeof *data) : NULL;
    for (size_t i = 0; copy && data && i < parts; i++) {
        copy[i] = map_ranges[first + i];
        if (copy[i].at < from) copy[i].at = from;
        if (copy[i].end > from + n) copy[i].end = from + n;
        size_t size = copy[i].end - copy[i].at;
        if (copy[i].width || !can_keep || !(data[i] = malloc(size))) continue;
        memcpy(data[i], (const void *)copy[i].at, size);
    }
    map_cut(to, to + n, 0);
    for (size_t i = 0; copy && data && i < parts; i++) {
        range new = copy[i];
        new.at = new.at - from + to, new.end = new.end - from + to;
        if (new.width) {
            for (uint64_t b = 0; b < new.width; b++) new.value[(b - from + to) % new.width] = copy[i].value[b];
            map_put(new);
        } else if (data[i]) {
            memcpy((void *)new.at, data[i], new.end - new.at);
            map_put(new);
        }
        free(data[i]);
    }
    free(copy);
    free(data);
    pthread_mutex_unlock(&lock);
}

/* Zeros in host memory. Large ones give their pages back, which then read as zeros: an offloaded
   model must not take the memory of this machine. */
static void zero(void *to, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)to;
    uintptr_t first = (at + page - 1) & ~(page - 1), end = (at + n) & ~(page - 1);
    if (n < LARGE_READ || madvise((void *)first, end - first, MADV_DONTNEED)) {
        memset(to, 0, n);
        return;
    }
    memset(to, 0, first - at);
    memset((void *)end, 0, at + n - end);
}

static int take(void *to, uint64_t from, size_t n, int start) {
    int worth = EMU_UNKNOWN;
    zero(to, n);
    if (!n || !inside(from, n)) return worth;
    pthread_mutex_lock(&lock);
    size_t first = map_first_after(from);
    worth = map_worst(from, from + n);
    for (size_t i = first; i < map_count && map_ranges[i].at < from + n; i++) {
        uint64_t at = map_ranges[i].at > from ? map_ranges[i].at : from;
        uint64_t end = map_ranges[i].end < from + n ? map_ranges[i].end : from + n;
        map_pour((unsigned char *)to + (at - from), &map_ranges[i], at, end);
    }
    if (start && worth == EMU_UNKNOWN && first < map_count && map_ranges[first].at <= from) worth = map_ranges[first].worth;
    pthread_mutex_unlock(&lock);
    return worth;
}
int emu_values_take(void *to, uint64_t from, size_t n) { return take(to, from, n, 1); }

int emu_values_read(void *to, uint64_t from, size_t n) {
    int worth = take(to, from, n, 0);
    if (expecting && n <= sizeof expected) { /* the address may hold what another tensor left */
        memcpy(to, expected, n);
        worth = expected_worth;
        expecting = 0;
    }
    if (n == 1 && holds && !atomic_load(&computing)) *(unsigned char *)to = 1, worth = EMU_ASSUMED;
    pthread_mutex_lock(&lock);
    if (worth == EMU_KNOWN) counters.known_reads++;
    else if (worth != EMU_UNKNOWN) counters.assumed_reads++;
    else counters.unknown_reads++;
    pthread_mutex_unlock(&lock);
    emu_values_hook call = worth == EMU_KNOWN ? NULL : atomic_load(&hook);
    if (call) call(from, n, worth, reader, reads, read_type, to);
    return worth;
}

void emu_values_splat(uint64_t at, size_t n, const void *value, size_t width, int worth) {
    if (!n || !inside(at, n)) return;
    pthread_mutex_lock(&lock);
    map_cut(at, at + n, 0);
    range new = {.at = at, .end = at + n, .worth = (uint8_t)worth, .width = (uint8_t)width};
    for (size_t b = 0; b < width; b++) new.value[(at + b) % width] = ((const unsigned char *)value)[b];
    map_put(new);
    pthread_mutex_unlock(&lock);
}

void emu_values_fill(uint64_t at, int byte, size_t n) {
    unsigned char value = (unsigned char)byte;
    if (!n || !inside(at, n)) return;
    emu_values_splat(at, n, &value, 1, EMU_KNOWN);
    if (n <= WRITTEN_FILL) emu_values_state(at, n, n, (unsigned char[8]){0});
}

int emu_values_state(uint64_t at, size_t n, size_t most, unsigned char pattern[8]) {
    memset(pattern, 0, 8);
    if (!n) return EMU_KNOWN;
    if (!inside(at, n)) return EMU_UNKNOWN;
    pthread_mutex_lock(&lock);
    int worth;
    if (n <= most) {
        int paid = affordable(n);
        if (paid) map_materialise(at, at + n);
        worth = paid ? map_worst(at, at + n) : EMU_UNKNOWN;
    } else {
        size_t i = map_first_after(at);
        worth = EMU_UNKNOWN;
        if (i < map_count && map_ranges[i].width && map_ranges[i].at <= at && map_ranges[i].end >= at + n) {
            worth = map_ranges[i].worth;
            for (int b = 0; b < 8; b++) pattern[b] = map_ranges[i].value[(at + (uint64_t)b) % map_ranges[i].width];
        }
    }
    pthread_mutex_unlock(&lock);
    return worth;
}

int emu_values_any(uint64_t at, size_t n) {
    if (!n || !inside(at, n)) return 0;
    pthread_mutex_lock(&lock);
    size_t i = map_first_after(at);
    int any = i < map_count && map_ranges[i].at < at + n;
    pthread_mutex_unlock(&lock);
    return any;
}

int emu_values_claim(uint64_t at, size_t n) {
    if (!n || !inside(at, n)) return 0;
    pthread_mutex_lock(&lock);
    int ok = affordable(n);
    if (!ok) map_cut(at, at + n, 0);
    pthread_mutex_unlock(&lock);
    return ok;
}

void emu_values_mark(uint64_t at, size_t n, int worth) {
    if (!n || !inside(at, n)) return;
    pthread_mutex_lock(&lock);
    map_cut(at, at + n, worth != EMU_UNKNOWN);
    if (worth != EMU_UNKNOWN) map_put((range){.at = at, .end = at + n, .worth = (uint8_t)worth});
    pthread_mutex_unlock(&lock);
}

void emu_values_holds(int now) { holds = now; }
void emu_values_computes(int now) { atomic_store(&computing, now); }

void emu_values_expect(const void *bytes, size_t n, int worth) {
    memset(expected, 0, sizeof expected);
    memcpy(expected, bytes, n < sizeof expected ? n : sizeof expected);
    expecting = 1, expected_worth = worth;
}
void emu_values_expect_nothing(void) { expecting = 0; }
int emu_values_expecting(void) { return expecting; }
void emu_values_reader(const char *op, int read, int type) { reader = op, reads = read, read_type = type; }

size_t emu_values_limit(size_t bytes) {
    size_t before = kept_copy;
    kept_copy = bytes;
    return before;
}

void emu_values_set_hook(emu_values_hook new) { atomic_store(&hook, new); }
void emu_values_computed(void) {
    pthread_mutex_lock(&lock);
    counters.computed++;
    pthread_mutex_unlock(&lock);
}
void emu_values_count(emu_values_counters *out) {
    pthread_mutex_lock(&lock);
    *out = counters;
    out->held_bytes = map_held;
    pthread_mutex_unlock(&lock);
}
