/* Communicators of the emulated NCCL (nccl_comm.c), as its collectives (nccl.c) use them. */
#ifndef EMU_NCCL_H
#define EMU_NCCL_H
#include "nccl_wire.h"

enum { ncclSuccess = 0, ncclSystemError = 2, ncclInvalidArgument = 4, ncclRemoteError = 6 };

typedef struct {
    uint64_t id;
    int size, rank, device, splits;
    int alone; /* no other rank has a process */
    wire **to_all;         /* from each rank to all others */
    wire **sends, **gets; /* between this rank and each other */
} comm;

/* The wires that lead away from a rank: to all others, or to one of them. NULL: cannot. */
wire *nccl_out_to_all(comm *c, int from);
wire *nccl_pair(comm *c, int from, int to);
int nccl_said(int code, const comm *c, int peer); /* the NCCL code of a WIRE_ code, with words for it */
/* A communicator for this process's current device. */
int nccl_make(void **out, uint64_t id, int size, int rank, int alone);
uint64_t nccl_mixed(uint64_t a, uint64_t b);
#endif
