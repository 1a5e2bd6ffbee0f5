// epoll: level, edge and one-shot entries, user data, nested sets, a closed number used again.
#include "check.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>

static void add(int epoll, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

static int poll_set(int epoll, struct epoll_event *events) {
    int got;
    do got = epoll_wait(epoll, events, 8, 50);
    while (got < 0 && errno == EINTR);
    return got;
}

static void expect(int epoll, uint64_t data, const char *what) {
    struct epoll_event events[8];
    int count = poll_set(epoll, events);
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 == data) return;
    FAIL("%s: expected an event with data %#lx, saw %d others", what, data, count);
}

static void expect_none(int epoll, const char *what) {
    struct epoll_event events[8];
    int count = poll_set(epoll, events);
    CHECK(count == 0, "%s: expected no event, saw %d", what, count);
}

int main(void) {
    int level = MUST(epoll_create1(0)), edge = MUST(epoll_create1(EPOLL_CLOEXEC)), once = MUST(epoll_create1(0));
    int outer = MUST(epoll_create1(0)), quiet = MUST(epoll_create1(0));
    int full = MUST(eventfd(1, 0)), empty = MUST(eventfd(0, 0));
    int pipes[2];
    MUST(pipe(pipes));
    add(level, full, EPOLLIN, 0x1111222233334444);
    add(edge, pipes[0], EPOLLIN | EPOLLET, 0x2222);
    add(once, full, EPOLLIN | EPOLLONESHOT, 0x3333);
    add(outer, level, EPOLLIN, 0x4444);
    add(quiet, empty, EPOLLIN, 0x5555);
    expect(once, 0x3333, "one-shot, before");
    ready_and_wait();
    expect(level, 0x1111222233334444, "level");
    expect(level, 0x1111222233334444, "level, again");
    expect(outer, 0x4444, "nested");
    expect_none(once, "one-shot, already used");
    struct epoll_event rearm = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 0x3334};
    MUST(epoll_ctl(once, EPOLL_CTL_MOD, full, &rearm));
    expect(once, 0x3334, "one-shot, armed again");
    expect_none(quiet, "empty");
    MUST(eventfd_write(empty, 1));
    expect(quiet, 0x5555, "filled after");
    CHECK(write(pipes[1], "x", 1) == 1, "write: %s", strerror(errno));
    expect(edge, 0x2222, "edge");
    expect_none(edge, "edge, no new data");
    REFUSED(epoll_ctl(quiet, EPOLL_CTL_ADD, empty, &rearm), EEXIST);
    MUST(epoll_ctl(quiet, EPOLL_CTL_DEL, empty, NULL));
    expect_none(quiet, "deleted");
    CHECK(fcntl(edge, F_GETFD) == FD_CLOEXEC, "epoll: expected close-on-exec");
    pass();
}
