/* Addresses of device memory: where the driver places segments, and what lies where.
 *
 * The rules are those of oomdoctor/analysis/allocator/device.py, from recorded runs on real
 * cards: address space is taken in chunks of whole 32 MiB from the highest free range downwards; a
 * segment starts its chunk, and what is left of a chunk takes later segments that fit, the newest
 * chunk first, its lowest address first; a chunk without segments is free again. Addresses decide
 * which of several equal free blocks PyTorch takes.
 */
#define _GNU_SOURCE
#include "emu.h"
#include "values.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK (32 * MIB)
#define ARENA_LOG2 45 /* 32 TiB of addresses for all devices of a process; less where that fails */

typedef struct { uint64_t first, end; unsigned long number; } chunk; /* number: order of making */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t arena, arena_end, device_span;
static int arena_writable;
static emu_block *blocks; /* by address */
static size_t n_blocks, cap_blocks;
static struct { chunk *list; size_t n, cap; uint64_t reserved_end; } spaces[EMU_MAX_DEVICES];
static unsigned long chunks_made;

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    n_blocks = 0;
    for (int i = 0; i < EMU_MAX_DEVICES; i++) spaces[i].n = 0, spaces[i].reserved_end = 0;
    emu_values_reset();
}

static void start(void) {
    void *at = MAP_FAILED;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint64_t size = 0;
    /* Writable where the kernel allows it; where it counts writable memory (strict overcommit) or
     * limits addresses, readable and less. */
    for (int log2 = ARENA_LOG2; at == MAP_FAILED && log2 >= 38; log2--) {
        size = 1ull << log2;
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
        arena_writable = at != MAP_FAILED;
        if (at == MAP_FAILED) at = mmap(NULL, size, PROT_READ, flags, -1, 0);
    }
    if (at == MAP_FAILED) {
        fprintf(stderr, "oomdoctor: no address space for the emulated GPU (ulimit -v?)\n");
        exit(70);
    }
    madvise(at, size, MADV_DONTDUMP);
    madvise(at, size, MADV_NOHUGEPAGE);
    arena = ((uint64_t)at + CHUNK - 1) / CHUNK * CHUNK;
    arena_end = ((uint64_t)at + size) / CHUNK * CHUNK;
    int count = emu_the_card()->count ? emu_the_card()->count : 1;
    if (arena_writable) emu_values_arena(arena, arena_end - arena);
    device_span = (arena_end - arena) / (uint64_t)count / CHUNK * CHUNK;
    pthread_atfork(NULL, NULL, in_child);
}

static void enter(void) {
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
}
static void leave(void) { pthread_mutex_unlock(&lock); }

/* --- blocks --- */

static size_t first_after(uint64_t address) {
    size_t low = 0, high = n_blocks;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].base <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void insert(emu_block block) {
    size_t at = first_after(block.base);
    if (n_blocks == cap_blocks) {
        cap_blocks = cap_blocks ? 2 * cap_blocks : 256;
        blocks = realloc(blocks, cap_blocks * sizeof *blocks);
    }
    memmove(blocks + at + 1, blocks + at, (n_blocks - at) * sizeof *blocks);
    blocks[at] = block;
    n_blocks++;
}

/* --- places --- */

/* The lowest hole of a chunk that holds `size` bytes; 0: there is none. */
static uint64_t hole_in(const chunk *c, uint64_t size, uint64_t align, int *empty) {
    uint64_t at = c->first;
    *empty = 1;
    for (size_t i = first_after(c->first - 1); i < n_blocks && blocks[i].base < c->end; i++) {
        *empty = 0;
        if (at + size <= blocks[i].base) return at;
        at = (blocks[i].base + blocks[i].size + align - 1) / align * align;
    }
    return at + size <= c->end ? at : 0;
}

/* The lowest address of the highest free range of at least `room` bytes, less `room`. */
static uint64_t new_chunk(int device, uint64_t room) {
    uint64_t low = arena + (uint64_t)device * device_span + spaces[device].reserved_end;
    uint64_t end = arena + (uint64_t)(device + 1) * device_span;
    for (;;) { /* chunks are few: look for the highest that is below `end` */
        uint64_t highest_end = low, highest_first = 0;
        for (size_t i = 0; i < spaces[device].n; i++) {
            chunk *c = &spaces[device].list[i];
            if (c->end <= end && c->end > highest_end) highest_end = c->end, highest_first = c->first;
        }
        if (end - highest_end >= room) return end - room;
        if (!highest_first) return 0;
        end = highest_first;
    }
}

static uint64_t place(int device, uint64_t size) {
    uint64_t align = size >= MIB ? 2 * MIB : 512;
    chunk *newest = NULL;
    uint64_t found = 0;
    for (size_t i = 0; i < spaces[device].n; i++) {
        int empty;
        chunk *c = &spaces[device].list[i];
        if (newest && newest->number > c->number) continue;
        uint64_t at = hole_in(c, size, align, &empty);
        if (at) newest = c, found = at;
    }
    if (found) return found;
    uint64_t room = (size + CHUNK - 1) / CHUNK * CHUNK, at = new_chunk(device, room);
    if (!at) return 0;
    if (spaces[device].n == spaces[device].cap) {
        spaces[device].cap = spaces[device].cap ? 2 * spaces[device].cap : 64;
        spaces[device].list = realloc(spaces[device].list, spaces[device].cap * sizeof(chunk));
    }
    spaces[device].list[spaces[device].n++] = (chunk){at, at + room, ++chunks_made};
    return at;
}

static void close_chunk(int device, uint64_t address) {
    for (size_t i = 0; i < spaces[device].n; i++) {
        chunk *c = &spaces[device].list[i];
        if (address < c->first || address >= c->end) continue;
        int empty;
        hole_in(c, 1, 1, &empty);
        if (empty) *c = spaces[device].list[--spaces[device].n];
        return;
    }
}

int emu_alloc(int device, uint64_t size, uint64_t *address) {
    uint64_t grain = size >= MIB ? 2 * MIB : 512, bytes = (size + grain - 1) / grain * grain;
    if (emu_charge(device, bytes)) return -1;
    enter();
    *address = place(device, bytes);
    if (*address) insert((emu_block){*address, bytes, bytes, EMU_DEVICE, device, 0});
    leave();
    if (*address) return 0;
    emu_uncharge(device, bytes);
    return -1;
}

/* Addresses for virtual memory management: from the bottom of the device's range upwards. */
uint64_t emu_reserve(int device, uint64_t size, uint64_t align) {
    enter();
    uint64_t base = arena + (uint64_t)device * device_span, at = base;
    uint64_t grain = align > 2 * MIB ? align : 2 * MIB, top = base + device_span;
    for (size_t i = 0; i < spaces[device].n; i++)
        if (spaces[device].list[i].first < top) top = spaces[device].list[i].first;
    for (size_t i = first_after(base - 1); i < n_blocks && blocks[i].base < top; i++) {
        if (at + size <= blocks[i].base) break;
        at = (blocks[i].base + blocks[i].size + grain - 1) / grain * grain;
    }
    if (at + size > top) at = 0;
    else {
        insert((emu_block){at, size, 0, EMU_ADDRESSES, device, 0});
        if (at + size - base > spaces[device].reserved_end)
            spaces[device].reserved_end = (at + size - base + CHUNK - 1) / CHUNK * CHUNK;
    }
    leave();
    return at;
}

void emu_adopt(uint64_t base, uint64_t size, emu_kind kind, int device) {
    enter();
    insert((emu_block){base, size, 0, kind, device, 0});
    leave();
}

int emu_free(uint64_t address) {
    enter();
    size_t i = first_after(address);
    int found = i > 0 && blocks[i - 1].base == address;
    emu_block block = {0};
    if (found) {
        block = blocks[i - 1];
        memmove(blocks + i - 1, blocks + i, (n_blocks - i) * sizeof *blocks);
        n_blocks--;
        if (block.kind == EMU_DEVICE) close_chunk(block.device, address);
    }
    leave();
    if (!found) return -1;
    if (block.charged) emu_uncharge(block.device, block.charged);
    if (block.kind == EMU_DEVICE || block.kind == EMU_ADDRESSES) emu_values_drop(address, block.size);
    return 0;
}

int emu_lookup(uint64_t address, emu_block *out) {
    enter();
    size_t i = first_after(address);
    int found = i > 0 && address < blocks[i - 1].base + (blocks[i - 1].size ? blocks[i - 1].size : 1);
    if (found && out) *out = blocks[i - 1];
    leave();
    return found;
}

int emu_is_device(uint64_t address) { return address >= arena && address < arena_end && arena; }

int emu_writable(uint64_t address, uint64_t size) {
    if (!emu_is_device(address)) return 0;
    if (arena_writable) return 1;
    uint64_t first = address & ~4095ull, end = (address + size + 4095) & ~4095ull;
    return !mprotect((void *)first, end - first, PROT_READ | PROT_WRITE);
}
