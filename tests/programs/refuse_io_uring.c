// Rings of io_uring that no clone can have, by KIND: with a request under way, one that reads files, one with an
// eventfd, one of one thread, one that is not enabled, one that a thread of the kernel polls.
#include "ring.h"
#include <sys/eventfd.h>

static uint32_t flags(const char *kind) {
    if (!strcmp(kind, "single")) return IORING_SETUP_SINGLE_ISSUER;
    if (!strcmp(kind, "disabled")) return IORING_SETUP_R_DISABLED;
    if (!strcmp(kind, "polled")) return IORING_SETUP_SQPOLL;
    return 0;
}

int main(void) {
    struct ring ring;
    const char *kind = getenv("KIND") ? getenv("KIND") : "small";
    int ends[2], event = MUST(eventfd(0, 0));
    char byte;
    MUST(pipe(ends));
    if (!ring_setup(&ring, strcmp(kind, "small") ? 256 : 4, flags(kind) | IORING_SETUP_NO_SQARRAY)) {
        ready_and_wait();
        pass();
    }
    if (!strcmp(kind, "eventfd")) MUST(syscall(SYS_io_uring_register, ring.fd, 4, &event, 1));
    if (!strcmp(kind, "busy") || !strcmp(kind, "reads")) {
        struct io_uring_sqe *next = ring_next(&ring);
        next->opcode = IORING_OP_READ;
        next->fd = ends[0];
        next->addr = (uintptr_t)&byte;
        next->len = 1;
        ring_submit(&ring, 0);
    }
    if (!strcmp(kind, "reads")) {
        CHECK(write(ends[1], "x", 1) == 1, "write: %s", strerror(errno));
        MUST(syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
        CHECK(ring_result(&ring) == 1, "read");
    }
    ready_and_wait();
    if (strcmp(kind, "disabled")) MUST(syscall(SYS_io_uring_enter, ring.fd, 0, 0, 0, NULL, 0));
    pass();
}
