/* What the bytes of emulated device memory are worth.
 *
 * Kernels do nothing, so most of device memory holds nothing that is true. Small data that steers
 * control flow (masks, lengths, counts, flags) is kept: device memory is address space that reads as
 * zeros, and this map says which ranges of it hold true bytes. Everything else is unknown and zero.
 *
 * Used by the stand-ins of the CUDA libraries (copies, memsets, collectives) and by values.cpp, which
 * computes small operators. All functions may be called from any thread.
 */
#ifndef EMU_VALUES_H
#define EMU_VALUES_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ordered: what is made from several ranges is worth as much as the worst of them. */
enum emu_worth {
    EMU_UNKNOWN, /* nothing is known; reads as zeros */
    EMU_BLANK,   /* computed from zeros that stand for something unknown */
    EMU_ASSUMED, /* chosen as a training might have it: even routing, random numbers, a share of a mask */
    EMU_KNOWN    /* what a real GPU would hold */
};

/* --- for the stand-ins of the CUDA libraries --- */

/* Device memory lies in [base, base + size), mapped readable and writable, all zeros. Without this
 * call (no such mapping could be made) nothing is ever known. */
void emu_values_arena(uint64_t base, uint64_t size);
void emu_values_write(uint64_t to, const void *data, size_t n);      /* host to device */
void emu_values_move(uint64_t to, uint64_t from, size_t n);          /* device to device */
int emu_values_read(void *to, uint64_t from, size_t n);              /* device to host; the worth */
void emu_values_fill(uint64_t at, int byte, size_t n);               /* memset */
void emu_values_drop(uint64_t at, size_t n);                         /* freed, unmapped, unknown now */
/* Collectives: as read and write, without counting, with the worth of the data, of any size. What is
 * known only at the start (an object in a longer buffer) is worth what its start is. */
int emu_values_take(void *to, uint64_t from, size_t n);
void emu_values_put(uint64_t to, const void *data, size_t n, int worth);
void emu_values_reset(void);                                         /* in a forked child */
/* A kernel ran that makes one truth value, and it would be true without padding and without NaN.
 * Used only while nothing computes real values. */
void emu_values_holds(int holds);
void emu_values_load(void); /* values.cpp's library, if it was built and torch is loaded */
void emu_values_replay(int capturing); /* 1: a graph is being captured (of any stream), 0: no more */

/* --- who reads what is not known --- */

typedef struct {
    uint64_t unknown_reads; /* read-backs of unknown values */
    uint64_t assumed_reads; /* read-backs of blank and assumed values */
    uint64_t known_reads;
    uint64_t held_bytes; /* of host memory, for known and assumed values */
    uint64_t refused;    /* values that were not kept because of the limit */
    uint64_t computed;   /* operators computed on the CPU */
} emu_values_counters;
void emu_values_count(emu_values_counters *out);
/* What a read-back gives. A size is read by an operator that allocates by it, such as nonzero. */
enum emu_read { EMU_READ_NUMBER, EMU_READ_TRUTH, EMU_READ_INTEGER, EMU_READ_SIZE };
/* Called after each read-back of something not known, in the thread that reads; `op` may be NULL.
 * `to` holds what was read, elements of a type: its character in Python's struct, r for bfloat16, 0 if
 * it is not known. The hook may write others. */
typedef void (*emu_values_hook)(
    uint64_t address, size_t n, int worth, const char *op, int read, int type, void *to);
void emu_values_set_hook(emu_values_hook hook);
void emu_values_reader(const char *op, int read, int type); /* who reads next in this thread, and what */

/* --- for values.cpp --- */

void emu_values_computes(int now); /* values.cpp is at work */
int emu_values_ready(void);                   /* is there an arena? */
int emu_values_inside(uint64_t at, size_t n); /* does the range lie in it? */
/* The worst worth of a range. A range with one value that is not written to memory (a splat) is
 * written now if it has at most `most` bytes. Otherwise `pattern` gets the value's 8 bytes, or zeros
 * and EMU_UNKNOWN where the range is not all one value. */
int emu_values_state(uint64_t at, size_t n, size_t most, unsigned char pattern[8]);
int emu_values_any(uint64_t at, size_t n); /* is anything in the range not unknown? */
/* May the range be written to? 0: over the limit, and the range is unknown now. */
int emu_values_claim(uint64_t at, size_t n);
void emu_values_mark(uint64_t at, size_t n, int worth); /* bytes were written to the memory itself */
void emu_values_splat(uint64_t at, size_t n, const void *value, size_t width, int worth);
/* The next read-back of at most 8 bytes by this thread gives these bytes. */
void emu_values_expect(const void *bytes, size_t n, int worth);
void emu_values_expect_nothing(void);
int emu_values_expecting(void);
/* The largest copy from the host that this thread keeps; 0: the default. The value before. */
size_t emu_values_limit(size_t bytes);
int emu_values_capturing(void);
void emu_values_computed(void); /* counts one */

#ifdef __cplusplus
}
#endif
#endif
