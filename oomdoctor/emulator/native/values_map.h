/* The ranges of device memory that hold something: shared by values_map.c and values.c, and used
 * under values.c's lock. */
#ifndef EMU_VALUES_MAP_H
#define EMU_VALUES_MAP_H
#include "values.h"

typedef struct {
    uint64_t at, end;
    unsigned char value[8]; /* of a splat: the byte at address a is value[a % width] */
    uint8_t width;          /* 0: the bytes are in memory */
    uint8_t worth;
    uint32_t turn; /* when it was put here: set by map_put */
} range;

extern range *map_ranges; /* sorted, disjoint */
extern size_t map_count;
extern uint64_t map_held; /* bytes in memory */

size_t map_first_after(uint64_t at); /* the first range that ends after `at` */
/* Takes [at, end) out of the map; memory of what was there is zeroed unless it is to be written. */
void map_cut(uint64_t at, uint64_t end, int keep_bytes);
void map_put(range new); /* where nothing is */
void map_give_up(uint64_t target); /* old, large ranges, until so many bytes are held */
void map_pour(unsigned char *to, const range *r, uint64_t at, uint64_t end); /* its bytes */
int map_worst(uint64_t at, uint64_t end);
void map_materialise(uint64_t at, uint64_t end); /* splats become bytes in memory */
#endif
