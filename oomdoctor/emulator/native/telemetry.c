/* NVML's telemetry: every GPU is cool and idle, as one is whose kernels do nothing, so that loggers run.
 * The figures are the same for every card and mean nothing; only memory and processes, in nvml.c, do. What a
 * card of this kind lacks (a fan, ECC) is "not supported", as on the real one. */
#define _GNU_SOURCE
#include "emu.h"
#include "nvml.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { IDLE_MW = 30000, LIMIT_MW = 300000, LEAST_MW = 100000, CELSIUS = 34 };
enum { IDLE_MHZ = 210, IDLE_MEMORY_MHZ = 405, CLOCKS = 4, MEMORY_CLOCK = 2, P8 = 8, FANS = 2, FAN_PERCENT = 30 };
enum { UNSIGNED = 1, UNSIGNED_LONG_LONG = 3 }; /* nvmlValueType_t */

static int has(const char *word) { return strstr(emu_the_card()->name, word) != NULL; }
static int has_fans(void) {
    return (has("GeForce") || has("RTX") || has("TITAN") || has("Quadro")) && !has("Server");
}
static int has_ecc(void) { return !has("GeForce") && !has("TITAN"); }
static unsigned long long millijoules(void) { return (unsigned long long)(emu_now() * IDLE_MW); }
static unsigned max_mhz(unsigned clock) {
    return (unsigned)emu_attribute(0, clock == MEMORY_CLOCK ? 36 : 13) / 1000;
}
static unsigned idle_mhz(unsigned clock) { return clock == MEMORY_CLOCK ? IDLE_MEMORY_MHZ : IDLE_MHZ; }
static int known(nvmlDevice_t d) {
    return number(d) == SPLIT ? emu_the_card()->mig : number(d) > 0 && number(d) <= emu_the_card()->count;
}

/* A function that answers with one number, or with two, if the card has what it is about. */
#define ONE_IF(name, type, has_it, value) \
    nvmlReturn_t name(nvmlDevice_t d, type *out) { \
        if (!known(d)) return INVALID; \
        if (!(has_it)) return NOT_SUPPORTED; \
        *out = (value); \
        return OK; \
    }
#define ONE(name, value) ONE_IF(name, unsigned, 1, value)
#define TWO_IF(name, type, has_it, first, second) \
    nvmlReturn_t name(nvmlDevice_t d, type *one, type *two) { \
        if (!known(d)) return INVALID; \
        if (!(has_it)) return NOT_SUPPORTED; \
        *one = (first), *two = (second); \
        return OK; \
    }
#define TWO(name, first, second) TWO_IF(name, unsigned, 1, first, second)
/* A function that is asked for one of `kinds` things, numbered from 0. */
#define OF_KIND(name, kinds, value) \
    nvmlReturn_t name(nvmlDevice_t d, unsigned kind, unsigned *out) { \
        if (!known(d) || kind >= (kinds)) return INVALID; \
        *out = (value); \
        return OK; \
    }

/* --- power --- */

ONE(nvmlDeviceGetPowerUsage, IDLE_MW)
ONE(nvmlDeviceGetEnforcedPowerLimit, LIMIT_MW)
ONE(nvmlDeviceGetPowerManagementLimit, LIMIT_MW)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, LIMIT_MW)
TWO(nvmlDeviceGetPowerManagementLimitConstraints, LEAST_MW, LIMIT_MW)
ONE(nvmlDeviceGetPowerManagementMode, 1)
ONE(nvmlDeviceGetPowerState, P8)
ONE(nvmlDeviceGetPerformanceState, P8)
ONE_IF(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 1, millijoules())

/* --- temperature, fans, clocks --- */

OF_KIND(nvmlDeviceGetTemperature, 1, CELSIUS)
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, unsigned three[3]) { /* version, sensor, answer */
    return nvmlDeviceGetTemperature(d, three[1], &three[2]);
}
OF_KIND(nvmlDeviceGetTemperatureThreshold, 4, kind == 0 ? 98 : kind == 3 ? 85 : 95)
ONE(nvmlDeviceGetNumFans, has_fans() ? FANS : 0)
ONE_IF(nvmlDeviceGetFanSpeed, unsigned, has_fans(), FAN_PERCENT)
nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t d, unsigned fan, unsigned *percent) {
    return fan < FANS || !has_fans() ? nvmlDeviceGetFanSpeed(d, percent) : INVALID;
}
nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t d, unsigned fan, unsigned *percent) {
    return nvmlDeviceGetFanSpeed_v2(d, fan, percent);
}
TWO_IF(nvmlDeviceGetMinMaxFanSpeed, unsigned, has_fans(), FAN_PERCENT, 100)
OF_KIND(nvmlDeviceGetClockInfo, CLOCKS, idle_mhz(kind))
OF_KIND(nvmlDeviceGetMaxClockInfo, CLOCKS, max_mhz(kind))
OF_KIND(nvmlDeviceGetMaxCustomerBoostClock, CLOCKS, max_mhz(kind))
OF_KIND(nvmlDeviceGetApplicationsClock, CLOCKS, max_mhz(kind))
OF_KIND(nvmlDeviceGetDefaultApplicationsClock, CLOCKS, max_mhz(kind))
nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t d, unsigned kind, unsigned id, unsigned *mhz) {
    return id == 0 ? nvmlDeviceGetClockInfo(d, kind, mhz) : nvmlDeviceGetMaxClockInfo(d, kind, mhz);
}
static nvmlReturn_t the_only_clock(nvmlDevice_t d, unsigned kind, unsigned *n, unsigned *mhz) {
    if (!known(d)) return INVALID;
    unsigned room = *n;
    *n = 1;
    if (room < 1 || !mhz) return TOO_SMALL;
    *mhz = max_mhz(kind);
    return OK;
}
nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t d, unsigned *n, unsigned *mhz) {
    return the_only_clock(d, MEMORY_CLOCK, n, mhz);
}
nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t d, unsigned memory, unsigned *n, unsigned *mhz) {
    return memory == max_mhz(MEMORY_CLOCK) ? the_only_clock(d, 0, n, mhz) : NOT_FOUND;
}
ONE_IF(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1, 1) /* idle */
ONE_IF(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 1, 1)
ONE_IF(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1, 0x1FF)
ONE_IF(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 1, 0x1FF)
ONE(nvmlDeviceGetAdaptiveClockInfoStatus, 0)
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t d, unsigned policy, unsigned long long two[2]) {
    if (!known(d) || policy > 12) return INVALID;
    two[0] = (unsigned long long)(emu_now() * 1e6), two[1] = 0;
    return OK;
}

/* --- utilization --- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, unsigned two[2]) {
    if (!known(d)) return INVALID;
    two[0] = two[1] = 0;
    return OK;
}
TWO(nvmlDeviceGetEncoderUtilization, 0, 100000) /* percent, and the period in microseconds */
TWO(nvmlDeviceGetDecoderUtilization, 0, 100000)
TWO(nvmlDeviceGetJpgUtilization, 0, 100000)
TWO(nvmlDeviceGetOfaUtilization, 0, 100000)
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, void *out, unsigned *n, unsigned long long since) {
    (void)out, (void)since;
    *n = 0;
    return known(d) ? NOT_FOUND : INVALID; /* no process was busy */
}

/* --- errors of memory --- */

TWO_IF(nvmlDeviceGetEccMode, unsigned, has_ecc(), 1, 1)
ONE_IF(nvmlDeviceGetDefaultEccMode, unsigned, has_ecc(), 1)
static nvmlReturn_t no_errors(nvmlDevice_t d, unsigned long long *out, int n) {
    if (!known(d)) return INVALID;
    if (!has_ecc()) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out * (size_t)n);
    return OK;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int error, int counter, unsigned long long *out) {
    (void)error, (void)counter;
    return no_errors(d, out, 1);
}
nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t d, int error, int counter, unsigned long long out[4]) {
    (void)error, (void)counter;
    return no_errors(d, out, 4);
}
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, int error, int counter, int where, unsigned long long *out) {
    (void)error, (void)counter, (void)where;
    return no_errors(d, out, 1);
}
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, int cause, unsigned *n, void *pages) {
    (void)cause, (void)pages;
    *n = 0;
    return !known(d) ? INVALID : has_ecc() ? OK : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t d, int cause, unsigned *n, void *pages, void *times) {
    (void)times;
    return nvmlDeviceGetRetiredPages(d, cause, n, pages);
}
ONE_IF(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, has_ecc(), 0)
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed) {
    if (!known(d)) return INVALID;
    if (!has_ecc()) return NOT_SUPPORTED;
    *corrected = *not = *pending = *failed = 0;
    return OK;
}

/* --- PCIe and the host --- */

ONE(nvmlDeviceGetCurrPcieLinkGeneration, 4)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, 4)
ONE(nvmlDeviceGetGpuMaxPcieLinkGeneration, 4)
ONE(nvmlDeviceGetCurrPcieLinkWidth, 16)
ONE(nvmlDeviceGetMaxPcieLinkWidth, 16)
ONE(nvmlDeviceGetPcieSpeed, 16000)  /* MB/s a lane */
ONE(nvmlDeviceGetPcieLinkMaxSpeed, 4) /* 16 GT/s */
ONE(nvmlDeviceGetPcieReplayCounter, 0)
OF_KIND(nvmlDeviceGetPcieThroughput, 2, 0) /* KB/s */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, unsigned long long three[3]) { /* total, free, used */
    if (!known(d)) return INVALID;
    three[0] = three[1] = 256 << 20, three[2] = 0;
    return OK;
}
static nvmlReturn_t processors(nvmlDevice_t d, unsigned n, unsigned long *set) {
    cpu_set_t allowed;
    if (!known(d)) return INVALID;
    memset(set, 0, n * sizeof *set);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return NOT_SUPPORTED;
    for (unsigned i = 0; i < n * 8 * sizeof *set && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed)) set[i / 64] |= 1ul << i % 64;
    return OK;
}
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t d, unsigned n, unsigned long *set) { return processors(d, n, set); }
nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t d, unsigned n, unsigned long *set, int scope) {
    (void)scope;
    return processors(d, n, set);
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, unsigned n, unsigned long *set, int scope) {
    (void)scope;
    if (!known(d) || !n) return INVALID;
    memset(set, 0, n * sizeof *set);
    set[0] = 1;
    return OK;
}
nvmlReturn_t nvmlDeviceSetCpuAffinity(nvmlDevice_t d) { return known(d) ? OK : INVALID; }
nvmlReturn_t nvmlDeviceClearCpuAffinity(nvmlDevice_t d) { return known(d) ? OK : INVALID; }
ONE(nvmlDeviceGetNumaNodeId, 0)
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level) {
    if (!known(a) || !known(b)) return INVALID;
    *level = a == b ? 0 : 40; /* internal; of one NUMA node */
    return OK;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int kind, unsigned *status) {
    (void)kind;
    if (!known(a) || !known(b)) return INVALID;
    *status = 0;
    return OK;
}
nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same) {
    if (!known(a) || !known(b)) return INVALID;
    *same = a == b;
    return OK;
}
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned n) {
    char path[64], name[1024] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NOT_FOUND;
    size_t got = fread(name, 1, sizeof name - 1, file); /* up to the first 0: the program */
    fclose(file);
    name[got] = 0;
    return nvml_text(out, n, name);
}

/* --- what it is and how it is set --- */

static unsigned architecture(void) { /* nvmlDeviceArchitecture_t */
    const emu_card *card = emu_the_card();
    switch (card->major) {
    case 6: return 4;
    case 7: return card->minor == 5 ? 6 : 5;
    case 8: return card->minor == 9 ? 8 : 7;
    case 9: return 9;
    default: return 10;
    }
}
static unsigned cores(void) {
    const emu_card *card = emu_the_card();
    int wide = card->major != 7 && !(card->major == 8 && card->minor == 0) && !(card->major == 6 && card->minor == 0);
    return (unsigned)card->multiprocessors * (wide ? 128 : 64);
}
ONE(nvmlDeviceGetArchitecture, architecture())
ONE(nvmlDeviceGetNumGpuCores, cores())
ONE(nvmlDeviceGetMemoryBusWidth, (unsigned)emu_the_card()->bus_bits)
ONE(nvmlDeviceGetBrand, has("GeForce") ? 5 : has("TITAN") ? 6 : has("Quadro") ? 1 : has("RTX") ? 12 : 14)
ONE(nvmlDeviceGetBoardId, (unsigned)number(d) << 8)
ONE(nvmlDeviceGetModuleId, (unsigned)number(d) - 1)
ONE(nvmlDeviceGetMultiGpuBoard, 0)
ONE(nvmlDeviceGetBusType, 2) /* PCIe */
ONE(nvmlDeviceGetComputeMode, 0)
ONE(nvmlDeviceGetPersistenceMode, 1)
ONE(nvmlDeviceGetDisplayMode, 0)
ONE(nvmlDeviceGetDisplayActive, 0)
ONE(nvmlDeviceGetAccountingMode, 0)
ONE(nvmlDeviceGetVirtualizationMode, 0)
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *out, unsigned n) {
    return known(d) ? nvml_text(out, n, "00.00.00.00.00") : INVALID;
}
nvmlReturn_t nvmlUnitGetCount(unsigned *n) { *n = 0; return OK; }
nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *n) { *n = 0; return OK; }

/* Some of the values by number; each says whether it is supported. */
typedef struct {
    unsigned field, scope;
    long long at_us, latency_us;
    int type, code;
    unsigned long long value;
} field_value;
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, field_value *values) {
    if (!known(d) || n < 0) return INVALID;
    for (int i = 0; i < n; i++) {
        field_value *one = &values[i];
        one->at_us = (long long)(emu_now() * 1e6), one->latency_us = 0;
        one->type = UNSIGNED, one->code = OK;
        switch (one->field) {
        case 82: one->value = CELSIUS; break; /* of the memory */
        case 83: one->type = UNSIGNED_LONG_LONG, one->value = millijoules(); break;
        case 185: case 186: one->value = IDLE_MW; break; /* the average, and this instant */
        default: one->code = NOT_SUPPORTED, one->value = 0;
        }
    }
    return OK;
}
