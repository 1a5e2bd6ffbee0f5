// A ring of io_uring as libuv makes it, without a library.
#ifndef FARFORK_RING_H
#define FARFORK_RING_H

#include "check.h"
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif

struct ring {
    int fd;
    uint32_t *sq_head, *sq_tail, *cq_head, *cq_tail;
    struct io_uring_cqe *completions;
    struct io_uring_sqe *submissions;
    uint32_t mask, cq_mask;
};

// Returns 0 where there is no io_uring.
static inline int ring_setup(struct ring *ring, uint32_t entries, uint32_t flags) {
    struct io_uring_params params = {.flags = flags};
    ring->fd = syscall(SYS_io_uring_setup, entries, &params);
    if (ring->fd < 0 && errno == EINVAL) {
        params.flags = flags & ~IORING_SETUP_NO_SQARRAY;
        ring->fd = syscall(SYS_io_uring_setup, entries, &params);
    }
    if (ring->fd < 0) {
        note("UNAVAILABLE io_uring_setup: %s", strerror(errno));
        return 0;
    }
    size_t bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    size_t with_array = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    if (with_array > bytes) bytes = with_array;
    int rights = PROT_READ | PROT_WRITE, how = MAP_SHARED | MAP_POPULATE;
    char *at = mmap(NULL, bytes, rights, how, ring->fd, IORING_OFF_SQ_RING);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    bytes = params.sq_entries * sizeof(struct io_uring_sqe);
    ring->submissions = mmap(NULL, bytes, rights, how, ring->fd, IORING_OFF_SQES);
    CHECK(ring->submissions != MAP_FAILED, "mmap: %s", strerror(errno));
    ring->sq_head = (uint32_t *)(at + params.sq_off.head);
    ring->sq_tail = (uint32_t *)(at + params.sq_off.tail);
    ring->cq_head = (uint32_t *)(at + params.cq_off.head);
    ring->cq_tail = (uint32_t *)(at + params.cq_off.tail);
    ring->completions = (struct io_uring_cqe *)(at + params.cq_off.cqes);
    ring->mask = params.sq_entries - 1;
    ring->cq_mask = params.cq_entries - 1;
    if (!(params.flags & IORING_SETUP_NO_SQARRAY)) {
        for (uint32_t i = 0; i <= ring->mask; i++) ((uint32_t *)(at + params.sq_off.array))[i] = i;
    }
    return 1;
}

static inline struct io_uring_sqe *ring_next(struct ring *ring) {
    struct io_uring_sqe *next = &ring->submissions[*ring->sq_tail & ring->mask];
    memset(next, 0, sizeof *next);
    return next;
}

// Submits one request and waits for `wait` completions.
static inline void ring_submit(struct ring *ring, uint32_t wait) {
    __atomic_store_n(ring->sq_tail, *ring->sq_tail + 1, __ATOMIC_RELEASE);
    long done = syscall(SYS_io_uring_enter, ring->fd, 1, wait, wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
    CHECK(done == 1, "io_uring_enter: %ld (%s)", done, done < 0 ? strerror(errno) : "");
}

// The result of the next completion.
static inline int ring_result(struct ring *ring) {
    CHECK(__atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE) != *ring->cq_head, "no completion");
    int result = ring->completions[*ring->cq_head & ring->cq_mask].res;
    __atomic_store_n(ring->cq_head, *ring->cq_head + 1, __ATOMIC_RELEASE);
    return result;
}

static inline int ring_epoll(struct ring *ring, int epoll, int how, int fd, uint64_t data) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
    struct io_uring_sqe *next = ring_next(ring);
    next->opcode = IORING_OP_EPOLL_CTL;
    next->fd = epoll;
    next->addr = (uintptr_t)&event;
    next->len = how;
    next->off = fd;
    ring_submit(ring, 1);
    return ring_result(ring);
}

#endif
