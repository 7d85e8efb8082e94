/* The map of ranges of device memory that hold something. See values.h. */
#define _GNU_SOURCE
#include "values_map.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ull
#define SMALL 4096ull /* lengths and counts are worth more than their bytes */

range *map_ranges;
size_t map_count;
uint64_t map_held;
static size_t room;
static uint32_t turns;

size_t map_first_after(uint64_t at) {
    size_t low = 0, high = map_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (map_ranges[middle].end <= at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int make_room(size_t n) {
    if (map_count + n <= room) return 1;
    size_t more = 2 * (map_count + n) + 256;
    range *bigger = realloc(map_ranges, more * sizeof *bigger);
    if (!bigger) return 0;
    map_ranges = bigger, room = more;
    return 1;
}

/* Memory that held values reads as zeros again; whole pages are given back. */
static void zero(uint64_t at, uint64_t end) {
    uint64_t first = (at + PAGE - 1) / PAGE * PAGE, last = end / PAGE * PAGE;
    if (last < first + 16 * PAGE) {
        memset((void *)at, 0, end - at);
        return;
    }
    memset((void *)at, 0, first - at);
    memset((void *)last, 0, end - last);
    madvise((void *)first, last - first, MADV_DONTNEED);
}

void map_cut(uint64_t at, uint64_t end, int keep_bytes) {
    size_t i = map_first_after(at);
    if (i == map_count || map_ranges[i].at >= end || !make_room(1)) return;
    if (map_ranges[i].at < at && map_ranges[i].end > end) { /* a hole in one range */
        memmove(map_ranges + i + 1, map_ranges + i, (map_count - i) * sizeof *map_ranges);
        map_count++;
        map_ranges[i].end = at, map_ranges[i + 1].at = end;
        if (!map_ranges[i].width) {
            map_held -= end - at;
            if (!keep_bytes) zero(at, end);
        }
        return;
    }
    if (map_ranges[i].at < at) {
        if (!map_ranges[i].width) {
            map_held -= map_ranges[i].end - at;
            if (!keep_bytes) zero(at, map_ranges[i].end);
        }
        map_ranges[i++].end = at;
    }
    size_t last = i;
    for (; last < map_count && map_ranges[last].at < end; last++) {
        uint64_t to = map_ranges[last].end < end ? map_ranges[last].end : end;
        if (!map_ranges[last].width) {
            map_held -= to - map_ranges[last].at;
            if (!keep_bytes) zero(map_ranges[last].at, to);
        }
        if (to < map_ranges[last].end) {
            map_ranges[last].at = to;
            break;
        }
    }
    memmove(map_ranges + i, map_ranges + last, (map_count - last) * sizeof *map_ranges);
    map_count -= last - i;
}

static int same(const range *a, const range *b) {
    return a->worth == b->worth && a->width == b->width && (!a->width || !memcmp(a->value, b->value, a->width));
}

/* Joined with equal neighbours. */
void map_put(range new) {
    if (new.at >= new.end || !make_room(1)) return;
    if (!new.width) map_held += new.end - new.at;
    new.turn = ++turns;
    size_t i = map_first_after(new.at);
    if (i > 0 && map_ranges[i - 1].end == new.at && same(&map_ranges[i - 1], &new)) {
        map_ranges[i - 1].end = new.end, map_ranges[i - 1].turn = new.turn;
        if (i < map_count && map_ranges[i].at == new.end && same(&map_ranges[i], &new)) {
            map_ranges[i - 1].end = map_ranges[i].end;
            memmove(map_ranges + i, map_ranges + i + 1, (--map_count - i) * sizeof *map_ranges);
        }
        return;
    }
    if (i < map_count && map_ranges[i].at == new.end && same(&map_ranges[i], &new)) {
        map_ranges[i].at = new.at, map_ranges[i].turn = new.turn;
        return;
    }
    memmove(map_ranges + i + 1, map_ranges + i, (map_count - i) * sizeof *map_ranges);
    map_ranges[i] = new;
    map_count++;
}

void map_give_up(uint64_t target) {
    uint32_t oldest = turns;
    for (size_t i = 0; i < map_count; i++)
        if (map_ranges[i].turn < oldest) oldest = map_ranges[i].turn;
    while (map_held > target && oldest < turns) {
        uint32_t until = oldest + (turns - oldest + 1) / 2;
        for (size_t i = map_count; i-- > 0;) {
            range r = map_ranges[i];
            if (!r.width && r.turn <= until && r.end - r.at >= SMALL) map_cut(r.at, r.end, 0);
        }
        oldest = until;
    }
}

void map_pour(unsigned char *to, const range *r, uint64_t at, uint64_t end) {
    if (!r->width) memcpy(to, (const void *)at, end - at);
    else if (r->width == 1) memset(to, r->value[0], end - at);
    else
        for (uint64_t a = at; a < end; a++) to[a - at] = r->value[a % r->width];
}

int map_worst(uint64_t at, uint64_t end) {
    int worth = EMU_KNOWN;
    for (size_t i = map_first_after(at); at < end; i++) {
        if (i == map_count || map_ranges[i].at > at) return EMU_UNKNOWN;
        if (map_ranges[i].worth < worth) worth = map_ranges[i].worth;
        at = map_ranges[i].end;
    }
    return worth;
}

void map_materialise(uint64_t at, uint64_t end) {
    for (size_t i = map_first_after(at); i < map_count && map_ranges[i].at < end; i++) {
        if (!map_ranges[i].width) continue;
        range part = map_ranges[i];
        if (part.at < at) part.at = at;
        if (part.end > end) part.end = end;
        map_cut(part.at, part.end, 0);
        map_pour((unsigned char *)part.at, &part, part.at, part.end);
        part.width = 0;
        memset(part.value, 0, sizeof part.value);
        map_put(part);
        i = map_first_after(part.end - 1);
    }
}

