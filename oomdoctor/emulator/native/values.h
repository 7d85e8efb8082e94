/* Values of small tensors: see values.c. Addresses are device addresses. */
#ifndef EMU_VALUES_H
#define EMU_VALUES_H
#include <stddef.h>
#include <stdint.h>

void emu_values_write(uint64_t to, const void *data, size_t n); /* host to device */
void emu_values_move(uint64_t to, uint64_t from, size_t n);     /* device to device */
void emu_values_read(void *to, uint64_t from, size_t n);        /* device to host */
void emu_values_fill(uint64_t to, int byte, size_t n);          /* memset */
void emu_values_drop(uint64_t at, size_t n);                    /* the memory was given back */
/* A kernel ran that makes one truth value, and it would be true without padding and without NaN.
 * Used only while nothing computes real values. */
void emu_values_holds(int holds);
#endif
