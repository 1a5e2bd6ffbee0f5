// Listening MPTCP sockets, those that do not listen yet, and connections: what was set on them,
// whom they serve, and that a connection stays the parent's.
#include "inet.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static int new_socket(int family, int flags) {
    int fd = socket(family, SOCK_STREAM | flags, IPPROTO_MPTCP);
    if (fd < 0 && errno == EPROTONOSUPPORT) note("UNAVAILABLE no MPTCP in this kernel");
    return MUST(fd);
}

static int bound(const union address *at, int flags) {
    int fd = new_socket(at->any.sa_family, flags);
    if (at->any.sa_family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    bind_to(fd, at);
    return fd;
}

static int connected_by_mptcp(const union address *to) {
    int fd = new_socket(to->any.sa_family, 0);
    MUST(connect(fd, &to->any, length_of(to)));
    return fd;
}

static void expect_backlog(int fd, unsigned expected) {
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes));
    CHECK(info.tcpi_state == TCP_LISTEN && info.tcpi_sacked == expected,
          "fd %d: expected backlog %u, saw %u in state %d", fd, expected, info.tcpi_sacked, info.tcpi_state);
}

static void exchange(int one, int other) {
    char byte = 0;
    CHECK(write(one, "a", 1) == 1 && read(other, &byte, 1) == 1 && byte == 'a', "one way: saw %d", byte);
    CHECK(write(other, "b", 1) == 1 && read(one, &byte, 1) == 1 && byte == 'b', "the other way: saw %d", byte);
}

// Serves a peer that speaks MPTCP, and one that does not.
static void serve(int listener, const union address *to) {
    expect_option(listener, SOL_SOCKET, SO_PROTOCOL, IPPROTO_MPTCP);
    int client = connected_by_mptcp(to), served = MUST(accept(listener, NULL, NULL));
    expect_option(served, SOL_SOCKET, SO_PROTOCOL, IPPROTO_MPTCP);
    exchange(client, served);
    close(client);
    close(served);
    serve_one(listener, to);
}

static int is_hung_up(int fd) {
    struct pollfd told = {fd, POLLIN, 0};
    MUST(poll(&told, 1, 0));
    return told.revents & POLLHUP;
}

static void is_reset(int fd) {
    char byte;
    REFUSED(read(fd, &byte, 1), ECONNRESET);
    CHECK(read(fd, &byte, 1) == 0, "read after the reset: expected the end");
    REFUSED(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

int main(void) {
    uint16_t port = own_port();
    union address four = v4("127.0.0.1", port), six = v6("::1", port), later = v4("127.0.0.2", port);
    int first = bound(&four, SOCK_NONBLOCK), second = bound(&six, 0), idle = bound(&later, 0);
    int unbound = new_socket(AF_INET, 0);
    set(first, IPPROTO_TCP, TCP_NODELAY, 1);
    set(first, IPPROTO_TCP, TCP_DEFER_ACCEPT, 3);
    set(first, IPPROTO_IP, IP_TOS, 0x20);
    set(second, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    set(unbound, SOL_SOCKET, SO_KEEPALIVE, 1);
    MUST(listen(first, 3));
    MUST(listen(second, 77));
    int client = connected_by_mptcp(&six), server = MUST(accept(second, NULL, NULL));
    CHECK(write(client, "unread", 6) == 6, "write: %s", strerror(errno));
    struct pollfd arrived = {server, POLLIN, 0};
    MUST(poll(&arrived, 1, 5000));
    ready_and_wait();
    if (is_hung_up(client)) {
        note("a clone");
        is_reset(client);
        is_reset(server);
    } else {
        char text[6] = "";
        CHECK(read(server, text, 6) == 6 && !memcmp(text, "unread", 6), "read: saw %.6s", text);
        exchange(client, server);
    }
    expect_name(first, &four);
    expect_name(second, &six);
    expect_name(idle, &later);
    expect_backlog(first, 3);
    expect_backlog(second, 77);
    CHECK(fcntl(first, F_GETFL) & O_NONBLOCK, "expected nonblocking");
    expect_option(first, IPPROTO_TCP, TCP_NODELAY, 1);
    expect_option(first, IPPROTO_TCP, TCP_DEFER_ACCEPT, 3);
    expect_option(first, IPPROTO_IP, IP_TOS, 0x20);
    expect_option(second, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    expect_option(second, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    expect_option(unbound, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(first, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0);
    MUST(fcntl(first, F_SETFL, 0));
    serve(first, &four);
    serve(second, &six);
    MUST(listen(idle, 1));
    serve(idle, &later);
    MUST(connect(unbound, &four.any, length_of(&four)));
    expect_option(unbound, SOL_SOCKET, SO_PROTOCOL, IPPROTO_MPTCP);
    pass();
}
