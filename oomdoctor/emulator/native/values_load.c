/* Loads the library of values.cpp: it needs torch's, so it is loaded when torch first asks for devices. */
#define _GNU_SOURCE
#include "values.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void load(void) {
    Dl_info here;
    char path[4200];
    const char *off = getenv("OOMDOCTOR_EMULATED_NO_VALUES");
    if ((off && *off == '1') || !dladdr((void *)load, &here)) return;
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    const char *end = strrchr(here.dli_fname, '/');
    if (!torch || !end) return;
    dlclose(torch);
    snprintf(path, sizeof path, "%.*s/libemuvalues.so", (int)(end - here.dli_fname), here.dli_fname);
    if (access(path, R_OK)) return; /* not built: there was no C++ compiler */
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL))
        fprintf(stderr, "oomdoctor: values of small tensors are unknown: %s\n", dlerror());
}

void emu_values_load(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}
