/* The emulated GPUs: what the stand-in libraries share, in libemugpu.so, one instance per process.
 *
 * No device memory is backed by host memory, apart from the small tensors of values.c. Addresses are
 * reserved, and bytes are counted in a table that all processes of a session share.
 */
#ifndef EMU_H
#define EMU_H
#include <stddef.h>
#include <stdint.h>

#define EMU_MAX_DEVICES 64
#define EMU_SLOTS 512
#define MIB (1024ull * 1024ull)

/* The card, from the file `device` of the session folder (OOMDOCTOR_EMULATED). */
typedef struct {
    char name[160], driver[32];
    int major, minor, multiprocessors;
    int threads_per_multiprocessor, blocks_per_multiprocessor, registers_per_multiprocessor;
    uint64_t shared_per_multiprocessor, shared_per_block_optin, l2_bytes;
    int bus_bits;
    uint64_t total_bytes;      /* cudaMemGetInfo's total */
    uint64_t nvml_total_bytes; /* nvidia-smi's total */
    uint64_t context_bytes;    /* what a process takes before its first allocation */
    uint64_t nccl_pair_bytes, nccl_bytes; /* what a communicator of 2, of more ranks takes */
    int count;                 /* devices */
    int mig;                   /* 1: the devices are MIG instances of one GPU */
    int alone;                 /* 1: a process stands for all ranks of its communicators */
} emu_card;

typedef enum { EMU_DEVICE = 1, EMU_MANAGED, EMU_HOST, EMU_ADDRESSES } emu_kind;

typedef struct {
    uint64_t base, size, charged;
    emu_kind kind;
    int device; /* physical */
    int user;   /* malloc pool (1) or not (0): see cudaMallocAsync */
} emu_block;

/* Devices. "Physical" indices count all of them; "visible" ones follow CUDA_VISIBLE_DEVICES. */
const emu_card *emu_the_card(void);
int emu_visible_count(void);
int emu_physical(int visible); /* -1: there is none */
int emu_visible(int physical); /* 0 if it is not visible */
void emu_uuid(int physical, unsigned char out[16]);
void emu_uuid_text(int physical, char out[48]);
int *emu_current(void);                         /* this thread's visible device */
int emu_attribute(int physical, int attribute); /* CUdevice_attribute and cudaDeviceAttr */
int emu_kernel_architecture(void); /* such as 86: of torch's kernels for this card; 0: none fits */

/* Memory. `device` is physical. Functions return 0, or -1 if the memory is not there. */
void emu_context(int device); /* charge this process's context, once */
void emu_communicator(int device, int ranks); /* charge the largest communicator of this process */
int emu_has_context(int device);
void emu_drop_context(int device); /* cudaDeviceReset */
int emu_alloc(int device, uint64_t size, uint64_t *address);
int emu_free(uint64_t address);                 /* -1: not the start of a block */
int emu_charge(int device, uint64_t size);      /* bytes without an address */
void emu_uncharge(int device, uint64_t size);
uint64_t emu_reserve(int device, uint64_t size, uint64_t align); /* addresses only; 0: none left */
void emu_adopt(uint64_t base, uint64_t size, emu_kind kind, int device); /* host memory */
int emu_lookup(uint64_t address, emu_block *out); /* 1: found */
int emu_is_device(uint64_t address);              /* device memory of this process's arena */
int emu_writable(uint64_t address, uint64_t size); /* 1: host code may write there */
void emu_usage(int device, uint64_t *by_all, uint64_t *by_me);
int emu_processes(int device, int max, int *pids, uint64_t *bytes);
const char *emu_session(void); /* the session folder */
int emu_has_ended(int pid);    /* 1: the process ended, even if its parent has not noticed */

/* Past the limit (past.c). A stand-in that allocates names its caller, says what it made, and when a
 * request is done; emu_charge asks whether one that does not fit is granted. */
#define EMU_MOST (4096ull * 1024 * MIB) /* of all processes of a device; then it is the end */
typedef struct {
    uint64_t at_us; /* since 1970 */
    uint64_t size, free_bytes, total_bytes, address;
    int64_t device; /* visible */
} emu_first;
void emu_past_begin(int ask, int answer, int (*ask_here)(void));
int emu_past_first(emu_first *out);
int emu_goes_past(int device, uint64_t size, uint64_t free_bytes);
void emu_request_from(const void *caller, int in_pieces);
void emu_request_made(uint64_t size);
void emu_request_at(uint64_t address);
void emu_request_done(void);
void emu_capturing(int change);

/* Injected failures: OOMDOCTOR_EMULATED_FAIL="cudaMalloc@17=2,cudaLaunchKernel@100=700" makes the
 * 17th call of cudaMalloc return 2, and `@17+=2` all from then on. Returns the code, or 0. Some codes
 * are sticky: see failures.c. */
int emu_failure(const char *function);
int emu_sticky(void);

/* A default stub was called: the code to return. OOMDOCTOR_EMULATED_TRACE=1 names each stub once,
 * 2 each call, 3 each kernel too. */
long emu_default(const char *name, int *seen, long code);
long emu_stub(const char *name, int *seen, long code); /* the same, and the caller notes the launch */
int emu_trace(void);

/* Something was answered that only the real library knows: a bound, or nothing. `what` is a key of
 * data/inexact.toml. Each process notes it once, in the file `inexact` of the session. */
void emu_inexact(const char *what);
double emu_now(void); /* seconds */
#endif
