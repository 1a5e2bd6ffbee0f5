// One epoll of several processes: each has added a watch on a file of its own, under one number.
#include "tree.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define NUMBER 90

static int epoll, counter;

static void watch(uint32_t data) {
    MUST(dup2(counter, NUMBER));
    close(counter);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = data};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, NUMBER, &event));
}

static unsigned ready_ones(void) {
    struct epoll_event events[8];
    unsigned seen = 0;
    int count = MUST(epoll_wait(epoll, events, 8, 0));
    for (int i = 0; i < count; i++) seen |= 1u << events[i].data.u32;
    return seen;
}

static void with_watch(void) {
    counter = MUST(eventfd(0, EFD_NONBLOCK));
    watch(2);
    in_place();
    eventfd_t count;
    CHECK(ready_ones() == 1u << 1, "in the child: expected the parent's watch, saw %#x", ready_ones());
    MUST(eventfd_write(NUMBER, 1));
    CHECK(ready_ones() == (1u << 1 | 1u << 2), "expected both watches, saw %#x", ready_ones());
    MUST(eventfd_read(NUMBER, &count));
    struct epoll_event event = {.events = EPOLLOUT, .data.u32 = 3};
    MUST(epoll_ctl(epoll, EPOLL_CTL_MOD, NUMBER, &event));
    in_place();
    MUST(epoll_ctl(epoll, EPOLL_CTL_DEL, NUMBER, NULL));
}

int main(void) {
    epoll = MUST(epoll_create1(0));
    struct child other = child(with_watch);
    counter = MUST(eventfd(0, EFD_NONBLOCK));
    watch(1);
    char byte;
    ready_and_wait();
    CHECK(is_one_file(getpid(), epoll, other.pid, epoll), "expected one epoll");
    CHECK(ready_ones() == 0, "expected nothing to be ready, saw %#x", ready_ones());
    MUST(eventfd_write(NUMBER, 1));
    tell(other);
    CHECK(read(other.socket, &byte, 1) == 1, "the child has ended");
    CHECK(ready_ones() == (1u << 1 | 1u << 3), "expected what the child changed, saw %#x", ready_ones());
    tell_and_reap(other);
    CHECK(ready_ones() == 1u << 1, "expected the own watch, saw %#x", ready_ones());
    pass();
}
