/* The session: which card, how many, which of them are visible, and who uses how much of them. */
#define _GNU_SOURCE
#include "session.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t local = PTHREAD_MUTEX_INITIALIZER;
static emu_card card;
static char folder[4096];
static int visible_count, visible[EMU_MAX_DEVICES], trace;
static emu_table *table;
static int table_fd = -1;
static emu_slot *mine;

static void stop(const char *what, const char *name) {
    fprintf(stderr, "oomdoctor: the emulated GPU cannot start: %s%s\n", what, name);
    _exit(70);
}

/* --- the card --- */

static void set_field(const char *key, const char *value) {
    struct { const char *key; int *number; } numbers[] = {
        {"major", &card.major}, {"minor", &card.minor},
        {"multiprocessors", &card.multiprocessors},
        {"threads_per_multiprocessor", &card.threads_per_multiprocessor},
        {"blocks_per_multiprocessor", &card.blocks_per_multiprocessor},
        {"registers_per_multiprocessor", &card.registers_per_multiprocessor},
        {"bus_bits", &card.bus_bits}, {"count", &card.count}, {"mig", &card.mig},
        {"alone", &card.alone},
    };
    struct { const char *key; uint64_t *bytes; } sizes[] = {
        {"shared_per_multiprocessor", &card.shared_per_multiprocessor},
        {"shared_per_block_optin", &card.shared_per_block_optin},
        {"l2_bytes", &card.l2_bytes}, {"total_bytes", &card.total_bytes},
        {"nvml_total_bytes", &card.nvml_total_bytes}, {"context_bytes", &card.context_bytes},
        {"nccl_pair_bytes", &card.nccl_pair_bytes}, {"nccl_bytes", &card.nccl_bytes},
    };
    if (!strcmp(key, "name")) snprintf(card.name, sizeof card.name, "%s", value);
    if (!strcmp(key, "driver")) snprintf(card.driver, sizeof card.driver, "%s", value);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key)) *numbers[i].number = atoi(value);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(key, sizes[i].key)) *sizes[i].bytes = strtoull(value, NULL, 10);
}

static void read_card(void) {
    char path[4200], line[512];
    snprintf(path, sizeof path, "%s/device", folder);
    FILE *file = fopen(path, "re");
    if (!file) stop("cannot read ", path);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = 0;
        set_field(line, space + 1);
    }
    fclose(file);
    if (card.count < 0 || card.count > EMU_MAX_DEVICES || !card.total_bytes)
        stop("no usable facts in ", path);
}

/* --- visible devices --- */

void emu_uuid(int physical, unsigned char out[16]) {
    memcpy(out, "emulated\0\0\0\0\0\0\0", 16); /* the UUID spells it, for those who read hex */
    out[15] = (unsigned char)physical;
}

static void write_uuid(int physical, char out[48]) {
    unsigned char bytes[16];
    emu_uuid(physical, bytes);
    int at = sprintf(out, "%s-", card.mig ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        at += sprintf(out + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

void emu_uuid_text(int physical, char out[48]) {
    emu_the_card();
    write_uuid(physical, out);
}

static int visible_item(const char *item) {
    char uuid[48];
    if (*item >= '0' && *item <= '9') {
        int index = atoi(item);
        return index < card.count && !card.mig ? index : -1;
    }
    for (int i = 0; i < card.count; i++) {
        write_uuid(i, uuid);
        if (!strncasecmp(item, uuid, strlen(item))) return i;
    }
    return -1;
}

static void find_visible(void) {
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    if (!given) {
        /* Of MIG instances, CUDA takes the first one only. */
        visible_count = card.mig && card.count ? 1 : card.count;
        for (int i = 0; i < visible_count; i++) visible[i] = i;
        return;
    }
    char *copy = strdup(given), *rest = copy, *item;
    while ((item = strsep(&rest, ","))) {
        while (*item == ' ') item++;
        int index = *item ? visible_item(item) : -1;
        if (index < 0 || visible_count == EMU_MAX_DEVICES) break; /* CUDA ignores the rest */
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == index) visible_count = 0, index = -1; /* named twice: no device */
        if (index < 0) break;
        visible[visible_count++] = index;
    }
    free(copy);
}

/* --- start --- */

static void in_child(void) {
    /* A context does not survive a fork: the child holds nothing. */
    mine = NULL;
    pthread_mutex_init(&local, NULL);
}

static void at_exit(void) {
    if (mine && mine->pid == getpid()) memset(mine, 0, sizeof *mine);
}

static void start(void) {
    const char *text = getenv("OOMDOCTOR_EMULATED");
    if (!text || !*text) stop("OOMDOCTOR_EMULATED is not set; start it with `oomdoctor run`", "");
    snprintf(folder, sizeof folder, "%s", text);
    trace = (text = getenv("OOMDOCTOR_EMULATED_TRACE")) ? atoi(text) : 0;
    read_card();
    char path[4200];
    snprintf(path, sizeof path, "%s/table", folder);
    table_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (table_fd < 0 || ftruncate(table_fd, sizeof(emu_table))) stop("cannot write ", path);
    void *at = mmap(NULL, sizeof(emu_table), PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0);
    if (at == MAP_FAILED) stop("cannot map ", path);
    table = at;
    pthread_atfork(NULL, NULL, in_child);
    atexit(at_exit);
}

const emu_card *emu_the_card(void) { pthread_once(&once, start); return &card; }
const char *emu_session(void) { pthread_once(&once, start); return folder; }
/* Not before a command uses CUDA: until then it may still set CUDA_VISIBLE_DEVICES. */
static void see(void) {
    static pthread_once_t seen = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    pthread_once(&seen, find_visible);
}

int emu_visible_count(void) { see(); return visible_count; }
int emu_trace(void) { pthread_once(&once, start); return trace; }

int emu_physical(int index) {
    see();
    return index >= 0 && index < visible_count ? visible[index] : -1;
}

int emu_visible(int physical) {
    for (int i = 0; i < emu_visible_count(); i++)
        if (visible[i] == physical) return i;
    return 0;
}

int *emu_current(void) {
    static __thread int device;
    return &device;
}

double emu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- the table: locked against other processes by a record lock, against threads by a mutex --- */

static void enter(void) {
    pthread_once(&once, start);
    pthread_mutex_lock(&local);
    while (lockf(table_fd, F_LOCK, 0) && errno == EINTR) {}
}

static void leave(void) {
    if (lockf(table_fd, F_ULOCK, 0)) perror("oomdoctor: lockf");
    pthread_mutex_unlock(&local);
}

static emu_slot *my_slot(void) {
    if (mine) return mine;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 1; i < EMU_SLOTS; i++) {
            emu_slot *slot = &table->slots[i];
            if (slot->pid && pass && emu_has_ended((int)slot->pid)) memset(slot, 0, sizeof *slot);
            if (!slot->pid) {
                slot->pid = getpid();
                return mine = slot;
            }
        }
    leave();
    stop("more processes than ", "an emulated GPU can serve");
    return NULL;
}

static uint64_t slot_bytes(const emu_slot *slot, int device) {
    uint64_t small = (slot->small[device] + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    return slot->context[device] + small + slot->large[device];
}

static uint64_t used_by_all(int device) {
    uint64_t sum = 0;
    for (int i = 0; i < EMU_SLOTS; i++) {
        emu_slot *slot = &table->slots[i];
        uint64_t bytes = slot->pid ? slot_bytes(slot, device) : 0;
        if (!bytes) continue;
        if (i && slot != mine && emu_has_ended((int)slot->pid)) memset(slot, 0, sizeof *slot);
        else sum += bytes;
    }
    return sum;
}

void emu_context(int device) {
    if (mine && mine->context[device]) return;
    enter();
    emu_slot *slot = my_slot();
    if (!slot->context[device]) slot->context[device] = card.context_bytes ? card.context_bytes : 1;
    leave();
}

void emu_communicator(int device, int ranks) {
    if (ranks < 2) return;
    emu_context(device);
    uint64_t bytes = card.context_bytes + (ranks == 2 ? card.nccl_pair_bytes : card.nccl_bytes);
    enter();
    if (mine->context[device] < bytes) mine->context[device] = bytes;
    leave();
}

int emu_has_context(int device) {
    pthread_once(&once, start);
    return device >= 0 && mine && mine->context[device];
}

void emu_drop_context(int device) {
    enter();
    if (mine) mine->context[device] = mine->small[device] = mine->large[device] = 0;
    leave();
}

static uint64_t *counter(emu_slot *slot, int device, uint64_t size) {
    return size < MIB ? &slot->small[device] : &slot->large[device]; /* small ones share pages */
}

static uint64_t chargeable(uint64_t size) {
    uint64_t grain = size >= MIB ? 2 * MIB : 512;
    return (size + grain - 1) / grain * grain;
}

int emu_charge(int device, uint64_t size) {
    emu_context(device);
    uint64_t bytes = chargeable(size), limit = card.total_bytes;
    for (;;) {
        enter();
        emu_slot *slot = my_slot();
        uint64_t before = slot_bytes(slot, device);
        *counter(slot, device, bytes) += bytes;
        uint64_t more = slot_bytes(slot, device) - before, used = more ? used_by_all(device) : 0;
        int fits = used <= limit;
        if (!fits) *counter(slot, device, bytes) -= bytes;
        leave();
        if (fits || limit == EMU_MOST) return fits ? 0 : -1;
        if (!emu_goes_past(device, bytes, used - more < limit ? limit - (used - more) : 0)) return -1;
        limit = EMU_MOST;
    }
}

void emu_uncharge(int device, uint64_t size) {
    enter();
    emu_slot *slot = my_slot();
    uint64_t bytes = chargeable(size), *held = counter(slot, device, bytes);
    *held -= bytes < *held ? bytes : *held;
    leave();
}

void emu_usage(int device, uint64_t *by_all, uint64_t *by_me) {
    enter();
    if (by_all) *by_all = used_by_all(device);
    if (by_me) *by_me = mine ? slot_bytes(mine, device) : 0;
    leave();
}

int emu_processes(int device, int max, int *pids, uint64_t *bytes) {
    int n = 0;
    enter();
    used_by_all(device); /* drops the dead */
    for (int i = 0; i < EMU_SLOTS && n < max; i++) {
        emu_slot *slot = &table->slots[i];
        if (!slot->pid || !slot_bytes(slot, device)) continue;
        pids[n] = slot->pid;
        bytes[n++] = slot_bytes(slot, device);
    }
    leave();
    return n;
}
