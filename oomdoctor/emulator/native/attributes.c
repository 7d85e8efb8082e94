/* Device attributes, by number: the driver's and the runtime's enumerations agree. Numbers and
 * meanings: the documentation of CUdevice_attribute. */
#include "emu.h"
#include "versions.h"

int emu_attribute(int physical, int attribute) {
    const emu_card *card = emu_the_card();
    switch (attribute) {
    case 1: return 1024;                                   /* MAX_THREADS_PER_BLOCK */
    case 2: case 3: return 1024;                           /* MAX_BLOCK_DIM_X, Y */
    case 4: return 64;                                     /* MAX_BLOCK_DIM_Z */
    case 5: return 2147483647;                             /* MAX_GRID_DIM_X */
    case 6: case 7: return 65535;                          /* MAX_GRID_DIM_Y, Z */
    case 8: return 49152;                                  /* MAX_SHARED_MEMORY_PER_BLOCK */
    case 9: return 65536;                                  /* TOTAL_CONSTANT_MEMORY */
    case 10: return 32;                                    /* WARP_SIZE */
    case 11: return 2147483647;                            /* MAX_PITCH */
    case 12: return 65536;                                 /* MAX_REGISTERS_PER_BLOCK */
    case 13: return 1700000;                               /* CLOCK_RATE, kHz: not told */
    case 14: return 512;                                   /* TEXTURE_ALIGNMENT */
    case 15: return 1;                                     /* GPU_OVERLAP */
    case 16: return card->multiprocessors;                 /* MULTIPROCESSOR_COUNT */
    case 19: return 1;                                     /* CAN_MAP_HOST_MEMORY */
    case 31: return 1;                                     /* CONCURRENT_KERNELS */
    case 33: return physical + 1;                          /* PCI_BUS_ID */
    case 36: return 1000000;                               /* MEMORY_CLOCK_RATE, kHz: not told */
    case 37: return card->bus_bits;                        /* GLOBAL_MEMORY_BUS_WIDTH */
    case 38: return (int)card->l2_bytes;                   /* L2_CACHE_SIZE */
    case 39: return card->threads_per_multiprocessor;      /* MAX_THREADS_PER_MULTIPROCESSOR */
    case 40: return 3;                                     /* ASYNC_ENGINE_COUNT */
    case 41: return 1;                                     /* UNIFIED_ADDRESSING */
    case 51: return 32;                                    /* TEXTURE_PITCH_ALIGNMENT */
    case 75: return card->major;                           /* COMPUTE_CAPABILITY_MAJOR */
    case 76: return card->minor;                           /* COMPUTE_CAPABILITY_MINOR */
    case 78: return 1;                                     /* STREAM_PRIORITIES_SUPPORTED */
    case 79: case 80: return 1;                            /* GLOBAL_, LOCAL_L1_CACHE_SUPPORTED */
    case 81: return (int)card->shared_per_multiprocessor;  /* ..SHARED_MEMORY_PER_MULTIPROCESSOR */
    case 82: return card->registers_per_multiprocessor;    /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    case 83: return 1;                                     /* MANAGED_MEMORY */
    case 87: return 2;                                     /* SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO */
    case 89: return 1;                                     /* CONCURRENT_MANAGED_ACCESS */
    case 90: case 91: return 1;     /* COMPUTE_PREEMPTION, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    case 95: return 1;                                     /* COOPERATIVE_LAUNCH */
    case 97: return (int)card->shared_per_block_optin;     /* ..SHARED_MEMORY_PER_BLOCK_OPTIN */
    case 99: return 1;                                     /* HOST_REGISTER_SUPPORTED */
    case 102: return 1;                                    /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    case 103: return 1;                                    /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
    case 106: return card->blocks_per_multiprocessor;      /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    case 108: return (int)(card->l2_bytes * 5 / 8);        /* MAX_PERSISTING_L2_CACHE_SIZE */
    case 111: return card->major >= 8 ? 1024 : 0;          /* RESERVED_SHARED_MEMORY_PER_BLOCK */
    case 115: return 1;                                    /* MEMORY_POOLS_SUPPORTED */
    case 120: return card->major >= 9;                     /* CLUSTER_LAUNCH */
    case 127: return card->major >= 9;                     /* TENSOR_MAP_ACCESS_SUPPORTED */
    case 134: return -1;                                   /* HOST_NUMA_ID */
    default: return 0;
    }
}

/* A cubin runs on cards of its major version whose minor is not lower; else the PTX is compiled. */
int emu_kernel_architecture(void) {
    static const int built[] = {KERNEL_ARCHITECTURES};
    const emu_card *card = emu_the_card();
    int own = card->major * 10 + card->minor, best = 0;
    for (size_t i = 0; i < sizeof built / sizeof *built; i++)
        if (built[i] <= own && built[i] / 10 == card->major && built[i] > best) best = built[i];
    static const int ptx[] = {PTX_ARCHITECTURES 0};
    for (size_t i = 0; !best && i < sizeof ptx / sizeof *ptx; i++)
        if (ptx[i] && ptx[i] <= own) best = ptx[i];
    return best;
}
