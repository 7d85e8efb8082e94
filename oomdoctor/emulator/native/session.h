/* The table of a session, in the file `table` of its folder. enter.py writes slot 0. */
#ifndef EMU_SESSION_H
#define EMU_SESSION_H
#include "emu.h"

typedef struct {
    int64_t pid; /* 0: free */
    uint64_t context[EMU_MAX_DEVICES], small[EMU_MAX_DEVICES], large[EMU_MAX_DEVICES];
} emu_slot;

typedef struct {
    emu_slot slots[EMU_SLOTS]; /* slot 0: memory that a foreign process holds */
} emu_table;
#endif
