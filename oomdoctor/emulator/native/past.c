/* Past the limit of the card: a request that fails for good is granted, so that a run shows all that
 * its training needs.
 *
 * torch frees its cache and asks again before it gives up, so its first try fails here too, until a
 * request was granted: from then on the card is taken to be as large as needed, and a cache that is freed
 * at each request would fragment memory. Expandable segments have no such gaps. Others ask once.
 *
 * Before the first request is granted, the process is asked whether its script would handle the error;
 * then it gets it. torch holds the lock of its allocator here, and who waits for that may hold Python's.
 * So the question goes through a pipe, with a limit of time; a thread that holds Python's lock asks
 * directly.
 */
#define _GNU_SOURCE
#include "emu.h"
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 10000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int on, past, captures, question[2] = {-1, -1};
static int (*direct)(void);
static uint64_t asked;
static emu_first first;
static __thread struct { int from_torch, in_pieces, failed, unnamed; uint64_t made; } request;

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    on = past = captures = 0;
    memset(&first, 0, sizeof first);
    memset(&request, 0, sizeof request);
}

/* Go past the limit from now on. Questions go to one file descriptor: the number of the question, the
 * thread and the bytes; answers come from the other: the number, and whether the script sees the error.
 * `ask_here` is called by a thread that holds Python's lock. */
void emu_past_begin(int ask, int answer, int (*ask_here)(void)) {
    static int handled;
    if (!handled++) pthread_atfork(NULL, NULL, in_child);
    question[0] = ask, question[1] = answer, direct = ask_here;
    on = 1;
}

/* The first request that was granted; 1: there is one. */
int emu_past_first(emu_first *out) {
    pthread_mutex_lock(&lock);
    int found = past;
    if (found) *out = first;
    pthread_mutex_unlock(&lock);
    return found;
}

void emu_capturing(int change) { captures += change; }

void emu_request_from(const void *caller, int in_pieces) {
    request.in_pieces = in_pieces;
    Dl_info where;
    request.from_torch = dladdr(caller, &where) && where.dli_fname && strstr(where.dli_fname, "libc10_cuda");
}

void emu_request_done(void) { request.failed = 0, request.made = 0; }

/* Whether the script would handle the error: then it gets it. */
static int sees_it(uint64_t size) {
    int (*has_lock)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    if (has_lock && has_lock()) return direct();
    uint64_t words[3] = {++asked, (uint64_t)pthread_self(), size}, answer[2];
    if (write(question[0], words, sizeof words) != sizeof words) return 0;
    struct pollfd ready = {question[1], POLLIN, 0};
    for (;;) { /* an answer that came too late may be waiting */
        int n = poll(&ready, 1, PATIENCE_MS);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || read(question[1], answer, sizeof answer) != sizeof answer) return 0;
        if (answer[0] == asked) return (int)answer[1];
    }
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int emu_goes_past(int device, uint64_t size, uint64_t free_bytes) {
    if (!on) return 0;
    uint64_t all = emu_the_card()->total_bytes, whole = request.made;
    /* torch's expandable segments have addresses for 9/8 of the card; it needs some beyond a request. */
    int too_large = request.from_torch && request.in_pieces && whole + 2 * size > all + all / 8;
    int tries_again = request.from_torch && !request.failed && !captures && !(past && !request.in_pieces);
    if (tries_again || too_large) {
        request.failed = !too_large, request.made = 0;
        return 0;
    }
    pthread_mutex_lock(&lock);
    int granted = past || !sees_it(size);
    if (granted && !past) {
        first = (emu_first){now_us(), size, free_bytes + whole, all, 0, emu_visible(device)};
        past = request.unnamed = 1;
    }
    pthread_mutex_unlock(&lock);
    if (!granted) emu_request_done();
    return granted;
}

void emu_request_at(uint64_t address) {
    if (!request.unnamed) return;
    pthread_mutex_lock(&lock);
    first.address = address, request.unnamed = 0;
    pthread_mutex_unlock(&lock);
}

void emu_request_made(uint64_t size) { request.made += size; }
