/* NVML: devices, their memory and their processes; telemetry.c has the rest. What neither has answers "not
 * supported" (3). */
#include "emu.h"
#include "nvml.h"
#include "versions.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem; char id[32]; } pci_info;
typedef struct { unsigned pid; unsigned long long used; } process_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_v2;

static int index_of(nvmlDevice_t d) { return number(d) - 1; }
static nvmlDevice_t handle_of(int number) { return (nvmlDevice_t)(uintptr_t)number; }
static int mig(void) { return emu_the_card()->mig; }
static int gpus(void) { return mig() ? emu_the_card()->count > 0 : emu_the_card()->count; }
nvmlReturn_t nvml_text(char *out, unsigned n, const char *from) {
    if (strlen(from) >= n) return TOO_SMALL;
    strcpy(out, from);
    return OK;
}
static void uuid_of(nvmlDevice_t d, char out[48]) {
    if (number(d) == SPLIT) strcpy(out, "GPU-656d756c-6174-6564-0000-0000000000ff");
    else emu_uuid_text(index_of(d), out);
}

nvmlReturn_t nvmlInit(void) { return emu_failure("nvmlInit"); }
nvmlReturn_t nvmlInit_v2(void) { return emu_failure("nvmlInit"); }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return emu_failure("nvmlInit"); }
nvmlReturn_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(nvmlReturn_t code) {
    return code == OK ? "Success" : code == NOT_SUPPORTED ? "Not Supported"
           : code == NOT_FOUND ? "Not Found" : code == 15 ? "GPU is lost" : "Unknown Error";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned n) { return nvml_text(out, n, emu_the_card()->driver); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned n) { return nvml_text(out, n, emu_the_card()->driver); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = CUDA_VERSION; return OK; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *v) { *v = CUDA_VERSION; return OK; }

/* --- handles --- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)gpus(); return OK; }
nvmlReturn_t nvmlDeviceGetCount(unsigned *n) { return nvmlDeviceGetCount_v2(n); }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *d) {
    if ((int)i >= gpus()) return INVALID;
    *d = handle_of(mig() ? SPLIT : (int)i + 1);
    return OK;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned i, nvmlDevice_t *d) { return nvmlDeviceGetHandleByIndex_v2(i, d); }
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
    char own[48];
    for (int i = 0; i < emu_the_card()->count; i++) {
        *d = handle_of(i + 1);
        uuid_of(*d, own);
        if (!strcasecmp(own, uuid)) return OK;
    }
    *d = handle_of(SPLIT);
    uuid_of(*d, own);
    return mig() && !strcasecmp(own, uuid) ? OK : NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *d) {
    const char *colon = strchr(id, ':');
    unsigned bus = colon ? (unsigned)strtoul(colon + 1, NULL, 16) : 1;
    return bus < 1 ? NOT_FOUND : nvmlDeviceGetHandleByIndex_v2(bus - 1, d);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *d) { return nvmlDeviceGetHandleByPciBusId_v2(id, d); }
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *now, unsigned *pending) {
    const emu_card *card = emu_the_card();
    if (number(d) != SPLIT && (card->major < 8 || (card->major < 10 && card->minor))) return NOT_SUPPORTED;
    *now = *pending = number(d) == SPLIT;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *n) {
    *n = number(d) == SPLIT ? (unsigned)emu_the_card()->count : 0;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned i, nvmlDevice_t *instance) {
    if (number(d) != SPLIT || (int)i >= emu_the_card()->count) return NOT_FOUND;
    *instance = handle_of((int)i + 1);
    return OK;
}
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *is) {
    *is = mig() && number(d) != SPLIT;
    return OK;
}
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t d, nvmlDevice_t *gpu) {
    (void)d;
    *gpu = handle_of(SPLIT);
    return mig() ? OK : NOT_SUPPORTED;
}

/* --- facts --- */

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *i) {
    *i = number(d) == SPLIT ? 0 : (unsigned)index_of(d);
    return OK;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *i) { return nvmlDeviceGetIndex(d, i); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned n) { (void)d; return nvml_text(out, n, emu_the_card()->name); }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned n) {
    char own[48];
    uuid_of(d, own);
    return nvml_text(out, n, own);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, pci_info *p) {
    unsigned index;
    nvmlDeviceGetIndex(d, &index);
    memset(p, 0, sizeof *p);
    p->bus = index + 1, p->pci_id = 0x10DE; /* NVIDIA; which card is not told */
    snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", p->bus);
    snprintf(p->id, sizeof p->id, "00000000:%02X:00.0", p->bus);
    return OK;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
    (void)d;
    *major = emu_the_card()->major, *minor = emu_the_card()->minor;
    return OK;
}

/* --- memory --- */

static void memory(nvmlDevice_t d, unsigned long long *reserved, unsigned long long *used, unsigned long long *unused) {
    const emu_card *card = emu_the_card();
    uint64_t all = 0, total = card->total_bytes;
    if (number(d) != SPLIT) emu_usage(index_of(d), &all, NULL);
    else
        for (int i = 0; i < card->count; i++) {
            uint64_t one;
            emu_usage(i, &one, NULL);
            all += one;
        }
    if (number(d) == SPLIT) total *= (uint64_t)card->count;
    *reserved = card->nvml_total_bytes > card->total_bytes ? card->nvml_total_bytes - card->total_bytes : 0;
    *used = all < total ? all : total; /* a run may be past the limit */
    *unused = all < total ? total - all : 0;
}
static unsigned long long total_of(nvmlDevice_t d) {
    const emu_card *card = emu_the_card();
    return number(d) == SPLIT ? card->nvml_total_bytes * (unsigned long long)card->count : card->nvml_total_bytes;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, memory_v1 *m) {
    unsigned long long reserved;
    int failure = emu_failure("nvmlDeviceGetMemoryInfo");
    if (failure) return failure;
    memory(d, &reserved, &m->used, &m->free);
    m->used += reserved; /* version 1 counts what the driver keeps as used */
    m->total = total_of(d);
    return OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, memory_v2 *m) {
    memory(d, &m->reserved, &m->used, &m->free);
    m->total = total_of(d);
    return OK;
}
static nvmlReturn_t processes(nvmlDevice_t d, unsigned *n, void *out, int with_instances) {
    int pids[EMU_SLOTS], found = 0;
    uint64_t bytes[EMU_SLOTS];
    if (number(d) != SPLIT) found = emu_processes(index_of(d), EMU_SLOTS, pids, bytes);
    if (found > (int)*n) {
        *n = (unsigned)found;
        return TOO_SMALL;
    }
    for (int i = 0; i < found; i++)
        if (with_instances) ((process_v2 *)out)[i] = (process_v2){(unsigned)pids[i], bytes[i], 0xFFFFFFFF, 0xFFFFFFFF};
        else ((process_v1 *)out)[i] = (process_v1){(unsigned)pids[i], bytes[i]};
    *n = (unsigned)found;
    return OK;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, void *out) { return processes(d, n, out, 0); }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n, void *out) { return processes(d, n, out, 1); }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, void *out) { return processes(d, n, out, 1); }
#define NO_PROCESSES(name) \
    nvmlReturn_t name(nvmlDevice_t d, unsigned *n, void *out) { (void)d, (void)out; *n = 0; return OK; }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
