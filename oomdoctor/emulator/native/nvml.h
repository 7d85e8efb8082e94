/* What the sources of NVML share. A handle is the physical index + 1. In MIG mode there is one GPU, handle
 * SPLIT, and the devices are its instances. */
#include <stdint.h>

typedef struct handle *nvmlDevice_t;
typedef int nvmlReturn_t;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, SPLIT = 1000 };

static inline int number(nvmlDevice_t d) { return (int)(uintptr_t)d; }
nvmlReturn_t nvml_text(char *out, unsigned n, const char *from);
