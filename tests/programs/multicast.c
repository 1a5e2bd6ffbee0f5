// Groups that a UDP socket has joined: with and without a choice of senders, both families.
#include "inet.h"

#define GROUP "239.77.1.2"
#define CHOSEN "239.77.1.3"
#define GROUP6 "ff02::77"

static int member(const union address *at) {
    int fd = MUST(socket(at->any.sa_family, SOCK_DGRAM, 0));
    set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
    bind_to(fd, at);
    return fd;
}

static void send_from(const char *source, const char *group, uint16_t port) {
    union address from = v4(source, 0), to = v4(group, port);
    struct ip_mreqn device = {.imr_ifindex = 1};
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    bind_to(fd, &from);
    MUST(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &device, sizeof device));
    CHECK(sendto(fd, "x", 1, 0, &to.any, length_of(&to)) == 1, "sendto %s: %s", group, strerror(errno));
    close(fd);
}

static void expect_message(int fd, int expected, const char *what) {
    struct pollfd ready = {fd, POLLIN, 0};
    char byte;
    int got = poll(&ready, 1, expected ? 2000 : 50) == 1;
    if (got) CHECK(recv(fd, &byte, 1, 0) == 1, "recv: %s", strerror(errno));
    CHECK(got == expected, "%s: expected %d messages, saw %d", what, expected, got);
}

static struct ipv6_mreq join6(void) {
    return (struct ipv6_mreq){.ipv6mr_multiaddr = v6(GROUP6, 0).v6.sin6_addr, .ipv6mr_interface = 1};
}

static void check_all(int plain, int chosen, int six) {
    uint16_t port = own_port();
    send_from("127.0.0.1", GROUP, port);
    expect_message(plain, 1, "a group");
    expect_message(chosen, 0, "another group");
    send_from("127.0.0.1", CHOSEN, second_port());
    expect_message(chosen, 1, "a chosen sender");
    send_from("127.0.0.2", CHOSEN, second_port());
    expect_message(chosen, 0, "another sender");
    // The loopback device routes no groups of IPv6: that the kernel knows of it has to do.
    struct ipv6_mreq join = join6();
    REFUSED(setsockopt(six, IPPROTO_IPV6, IPV6_JOIN_GROUP, &join, sizeof join), EADDRINUSE);
}

int main(void) {
    union address any = v4("0.0.0.0", own_port()), next = v4("0.0.0.0", second_port());
    union address any6 = v6("::", own_port());
    int plain = member(&any), chosen = member(&next);
    int six = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    set(six, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    bind_to(six, &any6);
    struct ip_mreqn join = {.imr_multiaddr = v4(GROUP, 0).v4.sin_addr, .imr_ifindex = 1};
    MUST(setsockopt(plain, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join));
    struct group_source_req source = {.gsr_interface = 1};
    union address group = v4(CHOSEN, 0), sender = v4("127.0.0.1", 0);
    memcpy(&source.gsr_group, &group.v4, sizeof group.v4);
    memcpy(&source.gsr_source, &sender.v4, sizeof sender.v4);
    MUST(setsockopt(chosen, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &source, sizeof source));
    struct ipv6_mreq again = join6();
    MUST(setsockopt(six, IPPROTO_IPV6, IPV6_JOIN_GROUP, &again, sizeof again));
    check_all(plain, chosen, six);
    ready_and_wait();
    check_all(plain, chosen, six);
    pass();
}
