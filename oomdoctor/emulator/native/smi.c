/* nvidia-smi on the emulated device: the table, -L, --query-gpu, --query-compute-apps and topo -m, as scripts
 * and loggers ask. All figures are NVML's, of nvml.c and telemetry.c. Other options end with an error. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct handle *gpu;
typedef unsigned long long u64;
enum { TEXT = 256, MOST = 64, MOST_PROCESSES = 512 };
enum { WRONG = 2, DENIED = 4, NO_DEVICE = 6, NO_DRIVER = 9 }; /* its exit codes */
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_info;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process;
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem; char id[32]; } pci_info;

int nvmlInit_v2(void), nvmlDeviceGetCount_v2(unsigned *), nvmlDeviceGetHandleByIndex_v2(unsigned, gpu *);
int nvmlDeviceGetIndex(gpu, unsigned *), nvmlDeviceGetName(gpu, char *, unsigned), nvmlDeviceGetUUID(gpu, char *, unsigned);
int nvmlDeviceGetPciInfo_v3(gpu, pci_info *), nvmlDeviceGetCudaComputeCapability(gpu, int *, int *);
int nvmlDeviceGetMemoryInfo_v2(gpu, memory_info *), nvmlDeviceGetVbiosVersion(gpu, char *, unsigned);
int nvmlDeviceGetComputeRunningProcesses_v3(gpu, unsigned *, process *), nvmlDeviceGetMigMode(gpu, unsigned *, unsigned *);
int nvmlDeviceGetMaxMigDeviceCount(gpu, unsigned *), nvmlDeviceGetMigDeviceHandleByIndex(gpu, unsigned, gpu *);
int nvmlSystemGetDriverVersion(char *, unsigned), nvmlSystemGetCudaDriverVersion_v2(int *);
int nvmlSystemGetProcessName(unsigned, char *, unsigned), nvmlDeviceGetUtilizationRates(gpu, unsigned *);
int nvmlDeviceGetTemperature(gpu, unsigned, unsigned *), nvmlDeviceGetFanSpeed(gpu, unsigned *);
int nvmlDeviceGetPowerUsage(gpu, unsigned *), nvmlDeviceGetEnforcedPowerLimit(gpu, unsigned *);
int nvmlDeviceGetPowerManagementLimitConstraints(gpu, unsigned *, unsigned *);
int nvmlDeviceGetClockInfo(gpu, unsigned, unsigned *), nvmlDeviceGetMaxClockInfo(gpu, unsigned, unsigned *);
int nvmlDeviceGetPerformanceState(gpu, unsigned *), nvmlDeviceGetEccMode(gpu, unsigned *, unsigned *);
int nvmlDeviceGetTotalEccErrors(gpu, int, int, u64 *), nvmlDeviceGetMaxPcieLinkGeneration(gpu, unsigned *);
int nvmlDeviceGetMaxPcieLinkWidth(gpu, unsigned *);

/* --- one value of a GPU, or of a process on it --- */

static unsigned two[2];

static void say(char *out, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(out, TEXT, format, rest);
    va_end(rest);
}
static memory_info memory_of(gpu d) {
    memory_info m = {0};
    nvmlDeviceGetMemoryInfo_v2(d, &m);
    return m;
}
/* By their address, because the question that fills them is an argument too. */
static void count(char *out, int failed, const unsigned *value) { say(out, failed ? "[N/A]" : "%u", *value); }
static void watts(char *out, int failed, const unsigned *mw) { say(out, failed ? "[N/A]" : "%.2f", *mw / 1000.0); }
static void on(char *out, int failed, const unsigned *is) { say(out, failed ? "[N/A]" : *is ? "Enabled" : "Disabled"); }

/* `at` of a clock is its kind; of memory, which figure. */
static void q_index(gpu d, int at, char *out) { (void)at; count(out, nvmlDeviceGetIndex(d, two), two); }
static void q_count(gpu d, int at, char *out) { (void)d, (void)at; count(out, nvmlDeviceGetCount_v2(two), two); }
static void q_name(gpu d, int at, char *out) { (void)at; nvmlDeviceGetName(d, out, TEXT); }
static void q_uuid(gpu d, int at, char *out) { (void)at; nvmlDeviceGetUUID(d, out, TEXT); }
static void q_vbios(gpu d, int at, char *out) { (void)at; nvmlDeviceGetVbiosVersion(d, out, TEXT); }
static void q_driver(gpu d, int at, char *out) { (void)d, (void)at; nvmlSystemGetDriverVersion(out, TEXT); }
static void q_none(gpu d, int at, char *out) { (void)d, (void)at; say(out, "[N/A]"); }
static void q_off(gpu d, int at, char *out) { (void)d; say(out, at ? "Enabled" : "Disabled"); }
static void q_default(gpu d, int at, char *out) { (void)d, (void)at; say(out, "Default"); }
static void q_bus(gpu d, int at, char *out) {
    pci_info pci;
    nvmlDeviceGetPciInfo_v3(d, &pci);
    if (at) say(out, "0x%02X", at == 1 ? pci.domain : at == 2 ? pci.bus : pci.device);
    else say(out, "%s", pci.id);
}
static void q_capability(gpu d, int at, char *out) {
    int major = 0, minor = 0;
    (void)at;
    nvmlDeviceGetCudaComputeCapability(d, &major, &minor);
    say(out, "%d.%d", major, minor);
}
static void q_memory(gpu d, int at, char *out) {
    memory_info m = memory_of(d);
    say(out, "%llu", (at == 0 ? m.total : at == 1 ? m.reserved : at == 2 ? m.used : m.free) >> 20);
}
static void q_busy(gpu d, int at, char *out) { count(out, nvmlDeviceGetUtilizationRates(d, two), two + at % 2); }
static void q_celsius(gpu d, int at, char *out) { count(out, nvmlDeviceGetTemperature(d, (unsigned)at, two), two); }
static void q_fan(gpu d, int at, char *out) { (void)at; count(out, nvmlDeviceGetFanSpeed(d, two), two); }
static void q_power(gpu d, int at, char *out) { (void)at; watts(out, nvmlDeviceGetPowerUsage(d, two), two); }
static void q_limit(gpu d, int at, char *out) { (void)at; watts(out, nvmlDeviceGetEnforcedPowerLimit(d, two), two); }
static void q_bounds(gpu d, int at, char *out) { watts(out, nvmlDeviceGetPowerManagementLimitConstraints(d, two, two + 1), two + at); }
static void q_clock(gpu d, int at, char *out) { count(out, nvmlDeviceGetClockInfo(d, (unsigned)at, two), two); }
static void q_most(gpu d, int at, char *out) { count(out, nvmlDeviceGetMaxClockInfo(d, (unsigned)at, two), two); }
static void q_state(gpu d, int at, char *out) { (void)at; nvmlDeviceGetPerformanceState(d, two); say(out, "P%u", two[0]); }
static void q_ecc(gpu d, int at, char *out) { (void)at; on(out, nvmlDeviceGetEccMode(d, two, two + 1), two); }
static void q_errors(gpu d, int at, char *out) {
    u64 errors;
    int failed = nvmlDeviceGetTotalEccErrors(d, at, 0, &errors);
    say(out, failed ? "[N/A]" : "%llu", errors);
}
static void q_mig(gpu d, int at, char *out) { (void)at; on(out, nvmlDeviceGetMigMode(d, two, two + 1), two); }
static void q_generation(gpu d, int at, char *out) { (void)at; count(out, nvmlDeviceGetMaxPcieLinkGeneration(d, two), two); }
static void q_width(gpu d, int at, char *out) { (void)at; count(out, nvmlDeviceGetMaxPcieLinkWidth(d, two), two); }
static void q_time(gpu d, int at, char *out) {
    struct timespec now;
    struct tm parts;
    char day[64];
    (void)d, (void)at;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    strftime(day, sizeof day, "%Y/%m/%d %H:%M:%S", &parts);
    say(out, "%s.%03ld", day, now.tv_nsec / 1000000);
}
static process *this_process;
static void p_pid(gpu d, int at, char *out) { (void)d, (void)at; count(out, 0, &this_process->pid); }
static void p_used(gpu d, int at, char *out) { (void)d, (void)at; say(out, "%llu", this_process->used >> 20); }
static void p_name(gpu d, int at, char *out) {
    (void)d, (void)at;
    if (nvmlSystemGetProcessName(this_process->pid, out, TEXT)) say(out, "[Not Found]");
}

/* A field: its names, each between two spaces, its unit, and what answers. */
typedef struct { const char *names, *unit; void (*ask)(gpu, int, char *); int at; } field;
static const field of_gpu[] = {
    {" index ", "", q_index, 0}, {" count ", "", q_count, 0}, {" name gpu_name ", "", q_name, 0},
    {" uuid gpu_uuid ", "", q_uuid, 0}, {" serial gpu_serial ", "", q_none, 0},
    {" pci.bus_id gpu_bus_id ", "", q_bus, 0}, {" pci.domain ", "", q_bus, 1}, {" pci.bus ", "", q_bus, 2},
    {" pci.device ", "", q_bus, 3}, {" driver_version ", "", q_driver, 0}, {" compute_cap ", "", q_capability, 0},
    {" timestamp ", "", q_time, 0}, {" vbios_version ", "", q_vbios, 0}, {" pstate ", "", q_state, 0},
    {" memory.total ", "MiB", q_memory, 0}, {" memory.reserved ", "MiB", q_memory, 1},
    {" memory.used ", "MiB", q_memory, 2}, {" memory.free ", "MiB", q_memory, 3},
    {" utilization.gpu ", "%", q_busy, 0}, {" utilization.memory ", "%", q_busy, 1},
    {" utilization.encoder utilization.decoder utilization.jpeg utilization.ofa ", "%", q_busy, 2},
    {" temperature.gpu ", "", q_celsius, 0}, {" temperature.memory ", "", q_celsius, 1}, {" fan.speed ", "%", q_fan, 0},
    {" power.draw power.draw.average power.draw.instant ", "W", q_power, 0},
    {" power.limit enforced.power.limit power.default_limit ", "W", q_limit, 0},
    {" power.min_limit ", "W", q_bounds, 0}, {" power.max_limit ", "W", q_bounds, 1},
    {" clocks.gr clocks.current.graphics ", "MHz", q_clock, 0}, {" clocks.sm clocks.current.sm ", "MHz", q_clock, 1},
    {" clocks.mem clocks.current.memory ", "MHz", q_clock, 2}, {" clocks.video clocks.current.video ", "MHz", q_clock, 3},
    {" clocks.max.gr clocks.max.graphics ", "MHz", q_most, 0}, {" clocks.max.sm ", "MHz", q_most, 1},
    {" clocks.max.mem clocks.max.memory ", "MHz", q_most, 2},
    {" persistence_mode ", "", q_off, 1}, {" display_active display_mode display_attached accounting.mode ", "", q_off, 0},
    {" compute_mode ", "", q_default, 0}, {" mig.mode.current mig.mode.pending ", "", q_mig, 0},
    {" ecc.mode.current ecc.mode.pending ", "", q_ecc, 0},
    {" ecc.errors.corrected.volatile.total ecc.errors.corrected.aggregate.total ", "", q_errors, 0},
    {" ecc.errors.uncorrected.volatile.total ecc.errors.uncorrected.aggregate.total ", "", q_errors, 1},
    {" pcie.link.gen.current pcie.link.gen.gpucurrent pcie.link.gen.max pcie.link.gen.gpumax ", "", q_generation, 0},
    {" pcie.link.width.current pcie.link.width.max ", "", q_width, 0}, {0},
};
static const field of_process[] = {
    {" pid ", "", p_pid, 0}, {" process_name name ", "", p_name, 0},
    {" used_memory used_gpu_memory ", "MiB", p_used, 0}, {" timestamp ", "", q_time, 0},
    {" gpu_name ", "", q_name, 0}, {" gpu_uuid ", "", q_uuid, 0}, {" gpu_bus_id ", "", q_bus, 0}, {0},
};

/* --- CSV --- */

static gpu gpus[MOST];
static unsigned n_gpus;

static unsigned processes_of(gpu d, process *out) {
    unsigned n = MOST_PROCESSES;
    return nvmlDeviceGetComputeRunningProcesses_v3(d, &n, out) ? 0 : n;
}
static const field *field_named(const field *table, const char *name) {
    char word[TEXT];
    say(word, " %s ", name);
    while (table->names && !strstr(table->names, word)) table++;
    return table->names ? table : NULL;
}
static void row(const field **fields, char **names, int n, gpu d, int units) {
    char text[TEXT];
    for (int i = 0; i < n; i++) {
        text[0] = 0;
        if (d) fields[i]->ask(d, fields[i]->at, text);
        const char *unit = fields[i]->unit, *gap = i ? ", " : "";
        if (!d && *unit) printf("%s%s [%s]", gap, names[i], unit);
        else if (d && *unit && units && *text != '[') printf("%s%s %s", gap, text, unit);
        else printf("%s%s", gap, d ? text : names[i]);
    }
    putchar('\n');
}
static int query(const field *table, const char *wanted, const char *format) {
    const field *fields[MOST];
    char *names[MOST], *rest = strdup(wanted), *name;
    static process found[MOST_PROCESSES];
    int n = 0;
    if (!format || strncmp(format, "csv", 3)) {
        puts("\"--format=\" switch is missing. Missing a \"--format=\" switch for the query.");
        return WRONG;
    }
    while (n < MOST && (name = strsep(&rest, ","))) {
        name += strspn(name, " ");
        name[strcspn(name, " ")] = 0;
        names[n] = name;
        if (!(fields[n++] = field_named(table, name))) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return WRONG;
        }
    }
    if (!strstr(format, "noheader")) row(fields, names, n, NULL, 0);
    for (unsigned g = 0; g < n_gpus; g++) {
        unsigned rows = table == of_gpu ? 1 : processes_of(gpus[g], found);
        for (unsigned i = 0; i < rows; i++) {
            this_process = &found[i];
            row(fields, names, n, gpus[g], !strstr(format, "nounits"));
        }
    }
    return 0;
}

/* --- pages --- */

static void line(char ends, const char *fill, const int *widths) {
    putchar(ends);
    for (; *widths; widths++) {
        for (int i = 0; i < *widths; i++) fputs(fill, stdout);
        putchar(widths[1] ? '+' : ends);
    }
    putchar('\n');
}
static void page(void) {
    static const int whole[] = {89, 0}, three[] = {41, 24, 22, 0};
    static process found[MOST_PROCESSES];
    char name[TEXT], driver[TEXT], used[TEXT], fan[TEXT], mig[TEXT], ecc[TEXT], version[TEXT];
    int cuda = 0, any = 0;
    time_t now = time(NULL);
    nvmlSystemGetDriverVersion(driver, TEXT);
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    say(version, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    printf("%s", ctime(&now));
    line('+', "-", whole);
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", driver, driver, version);
    line('|', "-", three);
    puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
         "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
         "|                                         |                        |               MIG M. |");
    line('|', "=", three);
    for (unsigned g = 0; g < n_gpus; g++) {
        gpu d = gpus[g];
        unsigned index = 0, state = 0, celsius = 0, draw = 0, limit = 0;
        pci_info pci;
        memory_info m = memory_of(d);
        nvmlDeviceGetIndex(d, &index), nvmlDeviceGetName(d, name, TEXT), nvmlDeviceGetPciInfo_v3(d, &pci);
        nvmlDeviceGetPerformanceState(d, &state), nvmlDeviceGetTemperature(d, 0, &celsius);
        nvmlDeviceGetPowerUsage(d, &draw), nvmlDeviceGetEnforcedPowerLimit(d, &limit);
        q_fan(d, 0, fan), q_mig(d, 0, mig), q_errors(d, 1, ecc);
        say(used, "%lluMiB / %6lluMiB", m.used >> 20, m.total >> 20);
        printf("| %3u  %-30.30s  On | %18s Off | %20s |\n", index, name, pci.id, *ecc == '[' ? "N/A" : ecc);
        if (*fan == '[') say(fan, "N/A ");
        else strcat(fan, "%");
        printf("| %4s %4uC    P%-2u        %5uW / %4uW | %22s |      0%%      Default |\n",
               fan, celsius, state, draw / 1000, limit / 1000, used);
        printf("|                                         |                        | %20s |\n", *mig == '[' ? "N/A" : mig);
        line('+', "-", three);
    }
    putchar('\n');
    line('+', "-", whole);
    printf("| %-87s |\n|  GPU   GI   CI              PID   Type   Process name %23s%-11s|\n", "Processes:", "", "GPU Memory");
    printf("|        ID   ID %62s%-11s|\n", "", "Usage");
    line('|', "=", whole);
    for (unsigned g = 0; g < n_gpus; g++) {
        unsigned index = 0, n = processes_of(gpus[g], found);
        nvmlDeviceGetIndex(gpus[g], &index);
        for (unsigned i = 0; i < n; i++, any = 1) {
            this_process = &found[i];
            p_name(gpus[g], 0, name);
            printf("|  %3u   N/A  N/A  %14u      C   %-35.35s %7lluMiB |\n", index, found[i].pid, name, found[i].used >> 20);
        }
    }
    if (!any) printf("| %-87s |\n", " No running processes found");
    line('+', "-", whole);
}
static void list(void) {
    char name[TEXT], uuid[TEXT];
    for (unsigned g = 0; g < n_gpus; g++) {
        unsigned index = 0, instances = 0;
        gpu one;
        q_name(gpus[g], 0, name), q_uuid(gpus[g], 0, uuid);
        nvmlDeviceGetIndex(gpus[g], &index);
        printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
        nvmlDeviceGetMaxMigDeviceCount(gpus[g], &instances);
        for (unsigned i = 0; i < instances && !nvmlDeviceGetMigDeviceHandleByIndex(gpus[g], i, &one); i++) {
            q_uuid(one, 0, uuid);
            printf("  MIG instance    Device %2u: (UUID: %s)\n", i, uuid);
        }
    }
}
static void topology(void) {
    for (unsigned g = 0; g < n_gpus; g++) printf("\tGPU%u", g);
    puts("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID");
    for (unsigned g = 0; g < n_gpus; g++) {
        printf("GPU%u", g);
        for (unsigned other = 0; other < n_gpus; other++) fputs(other == g ? "\t X " : "\tNODE", stdout);
        printf("\t0-%ld\t0\t\tN/A\n", sysconf(_SC_NPROCESSORS_CONF) - 1);
    }
}

/* --- the command line --- */

static int is(const char *word, const char *name) { return !strcmp(word, name); }
/* The value of an option that is written as --name=VALUE or, in two words, --name VALUE. */
static const char *value(char **argv, int *i, const char *name) {
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n)) return NULL;
    if (argv[*i][n] == '=') return argv[*i] + n + 1;
    return argv[*i][n] || !argv[*i + 1] ? NULL : argv[++*i];
}
static int choose(const char *wanted) {
    gpu chosen[MOST];
    unsigned n = 0;
    char *rest = strdup(wanted), *item, text[TEXT];
    while (n < MOST && (item = strsep(&rest, ","))) {
        unsigned before = n;
        for (unsigned g = 0; g < n_gpus && n == before; g++)
            for (int way = 0; way < 3 && n == before; way++) {
                (way == 0 ? q_index : way == 1 ? q_uuid : q_bus)(gpus[g], 0, text);
                if (!strcasecmp(text, item)) chosen[n++] = gpus[g];
            }
        if (n == before) return 0;
    }
    memcpy(gpus, chosen, sizeof *gpus * n);
    n_gpus = n;
    return 1;
}
int main(int argc, char **argv) {
    const char *of_gpus = NULL, *of_apps = NULL, *format = NULL, *ids = NULL, *text;
    int lists = 0;
    double every_s = 0;
    if (nvmlInit_v2()) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
        return NO_DRIVER;
    }
    nvmlDeviceGetCount_v2(&n_gpus);
    for (unsigned g = 0; g < n_gpus; g++) nvmlDeviceGetHandleByIndex_v2(g, &gpus[g]);
    if (argc > 1 && is(argv[1], "topo")) return topology(), 0;
    for (int i = 1; i < argc; i++) {
        if (is(argv[i], "-L") || is(argv[i], "--list-gpus")) lists = 1;
        else if ((text = value(argv, &i, "--query-gpu"))) of_gpus = text;
        else if ((text = value(argv, &i, "--query-compute-apps"))) of_apps = text;
        else if ((text = value(argv, &i, "--format"))) format = text;
        else if ((text = value(argv, &i, "--id")) || (text = value(argv, &i, "-i"))) ids = text;
        else if ((text = value(argv, &i, "--loop-ms")) || (text = value(argv, &i, "-lms"))) every_s = atof(text) / 1000;
        else if ((text = value(argv, &i, "--loop")) || (text = value(argv, &i, "-l"))) every_s = atof(text);
        else if ((text = value(argv, &i, "--filename")) || (text = value(argv, &i, "-f"))) {
            if (!freopen(text, "w", stdout)) return WRONG;
        } else if (strchr("pcaer", argv[i][1] ? argv[i][1] : '-') && argv[i][0] == '-') {
            puts("Settings of the emulated GPU cannot be changed: Insufficient Permissions");
            return DENIED;
        } else {
            fprintf(stderr, "nvidia-smi: %s is not known on the emulated GPU of oomdoctor\n", argv[i]);
            return WRONG;
        }
    }
    if (ids && !choose(ids)) {
        puts("No devices were found");
        return NO_DEVICE;
    }
    for (int code = 0;;) {
        if (lists) list();
        else if (of_gpus) code = query(of_gpu, of_gpus, format);
        else if (of_apps) code = query(of_process, of_apps, format);
        else page();
        fflush(stdout);
        if (code || every_s <= 0 || lists) return code;
        usleep((useconds_t)(every_s * 1e6));
    }
}
