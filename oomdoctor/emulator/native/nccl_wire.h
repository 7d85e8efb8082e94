/* Small messages between the processes of a session: what nccl.c needs to let counts, flags and
 * objects travel between ranks. */
#ifndef EMU_NCCL_WIRE_H
#define EMU_NCCL_WIRE_H
#include <stddef.h>
#include <stdint.h>

#define WIRE_READERS 128
/* Messages from one writer to some readers, each of whom gets all of them in order. */
typedef struct wire wire;
typedef struct {
    uint32_t worth;  /* enum emu_worth; the data of an unknown message is not sent */
    uint64_t bytes;
    void *data; /* of a message read: malloc'ed, or NULL */
} wire_message;

enum { WIRE_OK, WIRE_GONE, WIRE_LATE, WIRE_BROKEN };

wire *wire_open(const char *name, int readers); /* created if it is not there; NULL: cannot */
void wire_close(wire *w);
void wire_i_write(wire *w);           /* this process is the writer */
void wire_i_read(wire *w, int reader); /* this process is that reader */
void wire_same_writer(wire *w, const wire *as); /* its writer is that of another wire */
int wire_put(wire *w, const wire_message *m);
int wire_get(wire *w, int reader, wire_message *m);
#endif
