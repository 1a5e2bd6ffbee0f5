// io_uring's madvise passes every filter on system calls. A ring made after the wait either
// gives zeros or cannot be made (EPERM); nothing else will do.
#include "check.h"
#include <linux/io_uring.h>

struct ring {
    int fd;
    struct io_uring_params params;
    uint8_t *queues;
    struct io_uring_sqe *entries;
};

static void map_ring(struct ring *ring) {
    struct io_uring_params *p = &ring->params;
    CHECK(p->features & IORING_FEAT_SINGLE_MMAP, "io_uring: expected a single mapping");
    size_t sq = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    size_t cq = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->queues = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd,
                        IORING_OFF_SQ_RING);
    CHECK(ring->queues != MAP_FAILED, "mmap of the rings: %s", strerror(errno));
    ring->entries = mmap(NULL, p->sq_entries * sizeof(struct io_uring_sqe),
                         PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    CHECK(ring->entries != MAP_FAILED, "mmap of the entries: %s", strerror(errno));
}

static int ring_madvise(struct ring *ring, void *at, unsigned bytes, int advice) {
    struct io_uring_params *p = &ring->params;
    unsigned *tail = (unsigned *)(ring->queues + p->sq_off.tail);
    unsigned *array = (unsigned *)(ring->queues + p->sq_off.array);
    memset(&ring->entries[0], 0, sizeof ring->entries[0]);
    ring->entries[0].opcode = IORING_OP_MADVISE;
    ring->entries[0].addr = (uintptr_t)at;
    ring->entries[0].len = bytes;
    ring->entries[0].fadvise_advice = advice;
    array[0] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    MUST(syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->queues + p->cq_off.cqes);
    return done->res;
}

int main(void) {
    uint8_t *memory = filled(32 * PAGE, 1);
    ready_and_wait();
    struct ring ring = {0};
    ring.fd = syscall(SYS_io_uring_setup, 4, &ring.params);
    if (ring.fd < 0) {
        CHECK(errno == EPERM, "io_uring_setup: expected a ring or EPERM, saw %s", strerror(errno));
        note("io_uring_setup is refused with EPERM");
        pass();
    }
    map_ring(&ring);
    int result = ring_madvise(&ring, memory + 4 * PAGE, 8 * PAGE, MADV_DONTNEED);
    CHECK(result == 0, "IORING_OP_MADVISE: expected 0, saw %d", result);
    CHECK_FILLED(memory, 4 * PAGE, 1);
    CHECK_ZEROS(memory + 4 * PAGE, 8 * PAGE);
    CHECK_FILLED_FROM(memory + 12 * PAGE, 20 * PAGE, 1, 12 * PAGE);
    note("io_uring works and its madvise gives zeros");
    pass();
}
