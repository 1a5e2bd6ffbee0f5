// Raw IP sockets: bound and connected, with the filters of ICMP; the kernel answers an echo.
#include "inet.h"
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>

struct echo {
    uint8_t type, code;
    uint16_t sum, id, sequence;
};

static uint16_t sum_of(const struct echo *echo) {
    const uint16_t *words = (const uint16_t *)echo;
    uint32_t sum = 0;
    for (size_t at = 0; at < sizeof *echo / 2; at++) sum += words[at];
    return (uint16_t)~((sum >> 16) + (sum & 0xffff));
}

// Others on this machine ping as well: only the own id counts, behind `skip` bytes of header.
static int is_answered(int fd, uint8_t type, size_t skip, uint16_t id) {
    struct pollfd ready = {fd, POLLIN, 0};
    char packet[256];
    while (poll(&ready, 1, 300) == 1) {
        ssize_t got = recv(fd, packet, sizeof packet, MSG_DONTWAIT);
        struct echo echo;
        if (got < (ssize_t)(skip + sizeof echo)) continue;
        memcpy(&echo, packet + skip, sizeof echo);
        if (echo.type == type && echo.id == id) return 1;
    }
    return 0;
}

static void ping(int fd, int six) {
    uint16_t id = (uint16_t)getpid();
    struct echo echo = {.type = six ? ICMP6_ECHO_REQUEST : ICMP_ECHO, .id = id, .sequence = htons(1)};
    if (!six) echo.sum = sum_of(&echo);
    CHECK(send(fd, &echo, sizeof echo, 0) == sizeof echo, "send: %s", strerror(errno));
    CHECK(is_answered(fd, six ? ICMP6_ECHO_REPLY : ICMP_ECHOREPLY, six ? 0 : 20, id), "expected an echo");
}

int main(void) {
    union address one = v4("127.0.0.1", 0), six = v6("::1", 0);
    int fd = MUST(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)), fd6 = MUST(socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6));
    int deaf = MUST(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    struct icmp_filter {
        uint32_t data;
    } all = {~0u}, requests = {1u << ICMP_ECHO};
    MUST(setsockopt(fd, SOL_RAW, 1, &requests, sizeof requests));
    MUST(setsockopt(deaf, SOL_RAW, 1, &all, sizeof all));
    struct icmp6_filter replies;
    ICMP6_FILTER_SETBLOCKALL(&replies);
    ICMP6_FILTER_SETPASS(ICMP6_ECHO_REPLY, &replies);
    MUST(setsockopt(fd6, IPPROTO_ICMPV6, ICMP6_FILTER, &replies, sizeof replies));
    bind_to(fd, &one);
    MUST(connect(fd, &one.any, length_of(&one)));
    MUST(connect(fd6, &six.any, length_of(&six)));
    MUST(connect(deaf, &one.any, length_of(&one)));
    set(fd, IPPROTO_IP, IP_TTL, 9);
    ping(fd, 0);
    ready_and_wait();
    ping(fd, 0);
    ping(fd6, 1);
    expect_option(fd, IPPROTO_IP, IP_TTL, 9);
    struct icmp6_filter kept;
    socklen_t bytes = sizeof kept;
    MUST(getsockopt(fd6, IPPROTO_ICMPV6, ICMP6_FILTER, &kept, &bytes));
    CHECK(!memcmp(&kept, &replies, sizeof kept), "expected the filter of ICMPv6 to be kept");
    CHECK(!is_answered(deaf, ICMP_ECHOREPLY, 20, (uint16_t)getpid()), "expected all to be filtered");
    pass();
}
