/* Failures that a test asks for, and the errors after which a context is of no use. */
#include "emu.h"
#include "launches.h"
#include <pthread.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RULES 16
typedef struct { char function[64]; long at, seen; int code, onwards; } rule;
static rule rules[MAX_RULES];
static int n_rules, sticky;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* cudaErrorECCUncorrectable, IllegalAddress, LaunchTimeout, Assert, HardwareStackError,
 * IllegalInstruction, MisalignedAddress, InvalidAddressSpace, InvalidPc, LaunchFailure, Unknown:
 * from the documentation, "this leaves the process in an inconsistent state". */
static const int STICKY[] = {46, 214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999};

/* A forked child has a context of its own, and reads the variable again. */
static void in_child(void) {
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    pthread_mutex_init(&lock, NULL);
    n_rules = sticky = 0;
}

static void parse(void) {
    static int handled;
    if (!handled++) pthread_atfork(NULL, NULL, in_child);
    const char *text = getenv("OOMDOCTOR_EMULATED_FAIL");
    while (text && *text && n_rules < MAX_RULES) {
        rule *r = &rules[n_rules];
        r->onwards = sscanf(text, "%63[^@]@%ld+=%d", r->function, &r->at, &r->code) == 3;
        if (r->onwards || sscanf(text, "%63[^@]@%ld=%d", r->function, &r->at, &r->code) == 3) n_rules++;
        else fprintf(stderr, "oomdoctor: cannot read OOMDOCTOR_EMULATED_FAIL from `%s`\n", text);
        text = strchr(text, ',');
        if (text) text++;
    }
}

int emu_sticky(void) { return sticky; }

int emu_failure(const char *function) {
    pthread_once(&once, parse);
    if (!n_rules) return 0;
    if (sticky) return sticky;
    int code = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_rules; i++) {
        rule *r = &rules[i];
        if (strcmp(r->function, function)) continue;
        r->seen++;
        if (r->seen == r->at || (r->onwards && r->seen > r->at)) code = r->code;
    }
    for (size_t i = 0; code && i < sizeof STICKY / sizeof *STICKY; i++)
        if (code == STICKY[i]) sticky = code;
    pthread_mutex_unlock(&lock);
    return code;
}

long emu_stub(const char *name, int *seen, long code) {
    int level = emu_trace(), failure = emu_failure(name);
    if (level && (level > 1 || !*seen)) fprintf(stderr, "emulated: default %s\n", name);
    *seen = 1;
    return failure ? failure : code;
}

long emu_default(const char *name, int *seen, long code) {
    long given = emu_stub(name, seen, code);
    if (emu_noting && !given) emu_note_library(name);
    return given;
}

void emu_inexact(const char *what) {
    static const char *noted[32];
    static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&writing);
    int i = 0;
    while (i < 32 && noted[i] && strcmp(noted[i], what)) i++;
    if (i < 32 && !noted[i]) {
        char path[4200], line[80];
        noted[i] = what;
        snprintf(path, sizeof path, "%s/inexact", emu_session());
        int length = snprintf(line, sizeof line, "%s\n", what);
        int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        /* If the disk is full, the run goes on. */
        if (file >= 0) length = (int)write(file, line, (size_t)length), close(file);
    }
    pthread_mutex_unlock(&writing);
}
