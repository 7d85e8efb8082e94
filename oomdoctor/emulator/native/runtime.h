/* What the files of the runtime share. */
#ifndef EMU_RUNTIME_H
#define EMU_RUNTIME_H
#include "abi.h"

cudaError_t emu_fail(cudaError_t code); /* remember it as the thread's last error */
int emu_here(void);                     /* the physical index of the thread's device, or -1 */
#define NEED_DEVICE() do { if (emu_here() < 0) return emu_fail(cudaErrorNoDevice); } while (0)
#define MAY_FAIL(name) do { int f_ = emu_failure(name); if (f_) return emu_fail(f_); } while (0)
#endif
