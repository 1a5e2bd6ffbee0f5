// Linux AIO by system calls, as libaio makes them.
#ifndef FARFORK_AIO_H
#define FARFORK_AIO_H

#include "check.h"
#include <linux/aio_abi.h>

// What the kernel maps for a context, and libaio reads.
struct ring {
    unsigned id, events, head, tail, magic, compatible, incompatible, header_bytes;
};

static inline aio_context_t make_context(unsigned requests) {
    aio_context_t context = 0;
    MUST(syscall(SYS_io_setup, requests, &context));
    return context;
}

// Reads into memory that nobody looks at.
static inline void submit_read(aio_context_t context, int fd, uint64_t tag) {
    static char into[512];
    struct iocb request = {.aio_data = tag, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd,
                           .aio_buf = (uintptr_t)into, .aio_nbytes = sizeof into};
    struct iocb *list = &request;
    long submitted = MUST(syscall(SYS_io_submit, context, 1, &list));
    CHECK(submitted == 1, "io_submit: expected 1, saw %ld", submitted);
}

// How many events there were, of one at most; waits for at least `least`.
static inline long events(aio_context_t context, long least, struct io_event *event) {
    struct timespec now = {0, 0};
    return MUST(syscall(SYS_io_getevents, context, least, 1, event, least ? NULL : &now));
}

#endif
