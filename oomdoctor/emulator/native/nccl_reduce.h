/* Types and reductions of NCCL, for what travels. */
#ifndef EMU_NCCL_REDUCE_H
#define EMU_NCCL_REDUCE_H
#include <stdint.h>
#include <string.h>

/* int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, two of 8 bits */
static inline uint64_t nccl_item(int type) {
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 1;
}
static inline int nccl_whole(int type) { return type >= 0 && type <= 5; }
static inline int nccl_sums(int type) { return nccl_whole(type) || type == 7 || type == 8; }

#define NCCL_EACH(T, expression)                                                                    \
    do {                                                                                            \
        T *x = (T *)to;                                                                             \
        const T *y = (const T *)from;                                                               \
        for (uint64_t i = 0; i < n; i++) x[i] = (T)(expression);                                    \
    } while (0)
#define NCCL_BY_TYPE(expression)                                                                    \
    switch (type) {                                                                                 \
    case 0: NCCL_EACH(int8_t, expression); break;                                                   \
    case 1: NCCL_EACH(uint8_t, expression); break;                                                  \
    case 2: NCCL_EACH(int32_t, expression); break;                                                  \
    case 3: NCCL_EACH(uint32_t, expression); break;                                                 \
    case 4: NCCL_EACH(int64_t, expression); break;                                                  \
    case 7: NCCL_EACH(float, expression); break;                                                    \
    case 8: NCCL_EACH(double, expression); break;                                                   \
    default: NCCL_EACH(uint64_t, expression); break;                                                \
    }

/* to = to OP from; sum, product, maximum, minimum, average (summed here). NULL is zeros. */
static inline void nccl_reduce(void *to, const void *from, uint64_t n, int type, int op, int first) {
    unsigned char zeros[8] = {0};
    if (!from) { /* element by element: unknown data is never long enough to matter */
        for (uint64_t i = 0; i < n; i++)
            nccl_reduce((unsigned char *)to + i * nccl_item(type), zeros, 1, type, op, first);
        return;
    }
    if (first) memcpy(to, from, n * nccl_item(type));
    else if (op == 1) NCCL_BY_TYPE(x[i] * y[i])
    else if (op == 2) NCCL_BY_TYPE(x[i] > y[i] ? x[i] : y[i])
    else if (op == 3) NCCL_BY_TYPE(x[i] < y[i] ? x[i] : y[i])
    else NCCL_BY_TYPE(x[i] + y[i])
}
static inline void nccl_divide(void *to, uint64_t n, int type, int by) {
    const void *from = to;
    NCCL_BY_TYPE(y[i] / by)
}
#endif
