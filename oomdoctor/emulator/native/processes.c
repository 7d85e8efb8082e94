/* Other processes of the session. */
#include "emu.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* A process that ended but whose parent has not asked for its exit code still has its number. */
static int is_zombie(int pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' && (name_end[2] == 'Z' || name_end[2] == 'X');
}

int emu_has_ended(int pid) { return (kill(pid, 0) && errno == ESRCH) || is_zombie(pid); }
