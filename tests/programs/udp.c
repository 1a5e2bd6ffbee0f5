// UDP: bound, connected, unbound, both families; what waits in a queue may be lost, as datagrams
// may.
#include "inet.h"

static int datagram(const union address *at) {
    int fd = MUST(socket(at->any.sa_family, SOCK_DGRAM, 0));
    bind_to(fd, at);
    return fd;
}

static void drain(int fd) {
    char text[16];
    while (recv(fd, text, sizeof text, MSG_DONTWAIT) >= 0) {}
}

static void expect_text(int fd, const char *expected) {
    char text[16] = "";
    struct pollfd ready = {fd, POLLIN, 0};
    poll(&ready, 1, 2000);
    ssize_t got = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    CHECK(got == (ssize_t)strlen(expected) && !strcmp(text, expected), "fd %d: expected %s, saw %s (%s)", fd,
          expected, text, got < 0 ? strerror(errno) : "");
}

static void send_text(int fd, const char *text, const union address *to) {
    ssize_t sent = sendto(fd, text, strlen(text), 0, to ? &to->any : NULL, to ? length_of(to) : 0);
    CHECK(sent == (ssize_t)strlen(text), "sendto: %s", strerror(errno));
}

int main(void) {
    union address one = v4("127.0.0.1", own_port()), two = v4("127.0.0.2", own_port());
    union address six = v6("::1", own_port());
    int bound = datagram(&one), connected = datagram(&two), bound6 = datagram(&six);
    MUST(connect(connected, &one.any, length_of(&one)));
    int chosen = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    MUST(connect(chosen, &one.any, length_of(&one)));
    int unbound = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    set(unbound, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 7);
    set(bound, SOL_SOCKET, SO_BROADCAST, 1);
    send_text(chosen, "lost", NULL);
    ready_and_wait();
    drain(bound);
    expect_name(bound, &one);
    expect_name(connected, &two);
    expect_name(bound6, &six);
    send_text(connected, "connected", NULL);
    expect_text(bound, "connected");
    send_text(chosen, "chosen", NULL);
    expect_text(bound, "chosen");
    send_text(bound, "back", &two);
    expect_text(connected, "back");
    send_text(unbound, "six", &six);
    expect_text(bound6, "six");
    // What is not the peer's is not received.
    union address chosen_at;
    socklen_t bytes = sizeof chosen_at;
    MUST(getsockname(chosen, &chosen_at.any, &bytes));
    send_text(connected, "", NULL);
    expect_text(bound, "");
    int stranger = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    send_text(stranger, "stranger", &chosen_at);
    struct pollfd ready = {chosen, POLLIN, 0};
    CHECK(poll(&ready, 1, 50) == 0, "expected nothing from a stranger");
    CHECK(fcntl(chosen, F_GETFL) & O_NONBLOCK, "expected nonblocking");
    expect_option(bound, SOL_SOCKET, SO_BROADCAST, 1);
    expect_option(unbound, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 7);
    pass();
}
