// Idle rings of io_uring that change an epoll instance, as libuv has them: at positions that the program keeps, and
// in a clone without requests that filters cannot see.
#include "ring.h"

static void changes(struct ring *ring, int epoll, int fd, uint64_t data) {
    int result = ring_epoll(ring, epoll, EPOLL_CTL_ADD, fd, data);
    CHECK(result == 0, "EPOLL_CTL_ADD: %s", strerror(-result));
}

static void wakes(int epoll, int fd, uint64_t data) {
    struct epoll_event event = {0};
    CHECK(write(fd, "x", 1) == 1, "write: %s", strerror(errno));
    CHECK(epoll_wait(epoll, &event, 1, 2000) == 1 && event.data.u64 == data, "expected %lu, saw %lu", data,
          (uint64_t)event.data.u64);
}

int main(void) {
    struct ring used, fresh, old;
    int first[2], second[2], epoll = MUST(epoll_create1(0));
    MUST(pipe(first));
    MUST(pipe(second));
    if (!ring_setup(&used, 256, IORING_SETUP_NO_SQARRAY)) {
        ready_and_wait();
        pass();
    }
    ring_setup(&fresh, 256, IORING_SETUP_NO_SQARRAY);
    ring_setup(&old, 256, 0);
    // More often than there is room for.
    for (int i = 0; i < 700; i++) {
        changes(&used, epoll, first[0], 1);
        CHECK(ring_epoll(&used, epoll, EPOLL_CTL_DEL, first[0], 0) == 0, "EPOLL_CTL_DEL");
    }
    changes(&used, epoll, first[0], 11);
    changes(&old, epoll, second[0], 5);
    CHECK(ring_epoll(&old, epoll, EPOLL_CTL_DEL, second[0], 0) == 0, "EPOLL_CTL_DEL");
    ready_and_wait();
    uint32_t seen[] = {*used.sq_tail, *used.cq_head, *fresh.sq_tail, *old.sq_tail, *old.cq_tail};
    uint32_t expected[] = {1401, 1401, 0, 2, 2};
    CHECK(!memcmp(seen, expected, sizeof seen), "positions: saw %u, %u, %u, %u, %u", seen[0], seen[1], seen[2],
          seen[3], seen[4]);
    wakes(epoll, first[1], 11);
    CHECK(ring_epoll(&used, epoll, EPOLL_CTL_DEL, first[0], 0) == 0, "EPOLL_CTL_DEL");
    changes(&fresh, epoll, second[0], 22);
    wakes(epoll, second[1], 22);
    CHECK(ring_epoll(&old, epoll, EPOLL_CTL_DEL, second[0], 0) == 0, "EPOLL_CTL_DEL");
    CHECK(ring_epoll(&old, epoll, EPOLL_CTL_DEL, second[0], 0) == -ENOENT, "EPOLL_CTL_DEL a second time");
    pass();
}
