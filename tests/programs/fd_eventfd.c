// eventfd: counters, semaphores, flags.
#include "check.h"
#include <sys/eventfd.h>

static uint64_t take(int fd) {
    uint64_t value = 0;
    CHECK(read(fd, &value, 8) == 8, "eventfd %d: %s", fd, strerror(errno));
    return value;
}

int main(void) {
    int counter = MUST(eventfd(7, EFD_NONBLOCK)), semaphore = MUST(eventfd(3, EFD_SEMAPHORE));
    int large = MUST(eventfd(0, EFD_CLOEXEC)), empty = MUST(eventfd(0, EFD_NONBLOCK));
    MUST(eventfd_write(large, 0xfffffffffffffffeUL));
    int same = MUST(dup(counter));
    ready_and_wait();
    uint64_t value = take(same);
    CHECK(value == 7, "counter: expected 7, saw %lu", value);
    REFUSED(read(counter, &value, 8), EAGAIN);
    for (int i = 0; i < 3; i++) CHECK(take(semaphore) == 1, "semaphore: expected 1");
    CHECK(take(large) == 0xfffffffffffffffeUL, "large counter: expected the largest value");
    REFUSED(read(empty, &value, 8), EAGAIN);
    MUST(eventfd_write(semaphore, 2));
    CHECK(take(semaphore) == 1 && take(semaphore) == 1, "semaphore: expected 1 twice");
    CHECK(fcntl(large, F_GETFD) == FD_CLOEXEC, "eventfd: expected close-on-exec");
    pass();
}
