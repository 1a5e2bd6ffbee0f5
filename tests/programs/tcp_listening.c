// Listening TCP sockets of every kind, and those that do not listen yet: addresses, backlog, what
// was set, and that a connection that the parent has not accepted stays the parent's.
#include "inet.h"
#include <sys/epoll.h>

static int listener(const union address *at, int backlog, int v6_only) {
    int fd = MUST(socket(at->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (v6_only >= 0) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, v6_only);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    bind_to(fd, at);
    if (backlog >= 0) MUST(listen(fd, backlog));
    return fd;
}

static void expect_backlog(int fd, unsigned expected) {
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes));
    CHECK(info.tcpi_state == TCP_LISTEN && info.tcpi_sacked == expected,
          "fd %d: expected backlog %u, saw %u in state %d", fd, expected, info.tcpi_sacked, info.tcpi_state);
}

static void serve(int fd, const union address *to) {
    struct pollfd ready = {fd, POLLIN, 0};
    CHECK(poll(&ready, 1, 0) == 0, "fd %d: expected nobody waiting, saw %#x", fd, ready.revents);
    serve_one(fd, to);
}

static void expect_event(int epoll, int fd, const union address *to) {
    int client = connected_to(to);
    struct epoll_event event;
    CHECK(epoll_wait(epoll, &event, 1, 2000) == 1 && event.data.fd == fd, "expected an event of fd %d", fd);
    close(MUST(accept(fd, NULL, NULL)));
    close(client);
}

int main(void) {
    uint16_t port = own_port();
    union address any = v6("::", second_port()), through = v4("127.0.0.1", second_port());
    union address one = v4("127.0.0.1", port), six = v6("::1", port);
    union address idle = v4("127.0.0.2", port), late = v4("127.0.0.3", port);
    int first = listener(&one, 3, -1), second = listener(&six, 77, 1), both = listener(&any, 5, 0);
    int bound = listener(&idle, -1, -1), unbound = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set(unbound, SOL_SOCKET, SO_KEEPALIVE, 1);
    int lazy = MUST(socket(AF_INET, SOCK_STREAM, 0));
    bind_to(lazy, &late);
    MUST(listen(lazy, 9));
    int again = MUST(dup(first)), epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = first};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, first, &event));
    int waiting = connected_to(&late);
    ready_and_wait();
    // In the parent it still waits; in a clone its end was reset, and nobody waits.
    struct pollfd hung = {waiting, POLLIN, 0};
    if (poll(&hung, 1, 0) == 0) close(MUST(accept(lazy, NULL, NULL)));
    expect_name(first, &one);
    expect_name(second, &six);
    expect_name(both, &any);
    expect_name(bound, &idle);
    expect_backlog(first, 3);
    expect_backlog(second, 77);
    expect_backlog(lazy, 9);
    expect_event(epoll, first, &one);
    CHECK(fcntl(first, F_GETFL) & O_NONBLOCK, "fd %d: expected nonblocking", first);
    CHECK(!(fcntl(lazy, F_GETFL) & O_NONBLOCK), "fd %d: expected blocking", lazy);
    serve(again, &one);
    serve(second, &six);
    serve(both, &any);
    serve(both, &through);
    serve(lazy, &late);
    expect_option(lazy, SOL_SOCKET, SO_REUSEADDR, 0);
    expect_option(first, SOL_SOCKET, SO_REUSEADDR, 1);
    expect_option(second, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    expect_option(both, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    expect_option(unbound, SOL_SOCKET, SO_KEEPALIVE, 1);
    MUST(listen(bound, 1));
    serve(bound, &idle);
    CHECK(connect(unbound, &one.any, length_of(&one)) == 0, "connect: %s", strerror(errno));
    pass();
}
