// Every option that a socket can have, set to what it is not by itself.
#include "inet.h"
#include <linux/filter.h>
#include <sys/time.h>

struct option {
    int level, name, value;
};

static const struct option SOCKET_OPTIONS[] = {
    {SOL_SOCKET, SO_REUSEADDR, 1},    {SOL_SOCKET, SO_DONTROUTE, 1},     {SOL_SOCKET, SO_KEEPALIVE, 1},
    {SOL_SOCKET, SO_OOBINLINE, 1},    {SOL_SOCKET, SO_REUSEPORT, 1},     {SOL_SOCKET, SO_RCVLOWAT, 9},
    {SOL_SOCKET, SO_TIMESTAMPNS, 1},  {SOL_SOCKET, SO_MARK, 77},         {SOL_SOCKET, SO_PRIORITY, 5},
    {SOL_SOCKET, SO_RXQ_OVFL, 1},     {SOL_SOCKET, SO_BUSY_POLL, 3},     {SOL_SOCKET, SO_ZEROCOPY, 1},
    {SOL_SOCKET, SO_RCVBUF, 60000},   {SOL_SOCKET, SO_SNDBUF, 70000},    {SOL_SOCKET, SO_MAX_PACING_RATE, 1 << 20},
    {SOL_SOCKET, 69, 1},              {SOL_SOCKET, 75, 1},
};
static const struct option IP_OPTIONS_[] = {
    {IPPROTO_IP, IP_TOS, 0x28},       {IPPROTO_IP, IP_TTL, 33},          {IPPROTO_IP, IP_PKTINFO, 1},
    {IPPROTO_IP, IP_MTU_DISCOVER, 2}, {IPPROTO_IP, IP_RECVERR, 1},       {IPPROTO_IP, IP_RECVTTL, 1},
    {IPPROTO_IP, IP_RECVTOS, 1},      {IPPROTO_IP, IP_FREEBIND, 1},      {IPPROTO_IP, IP_TRANSPARENT, 1},
    {IPPROTO_IP, IP_MINTTL, 3},       {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1},
    {IPPROTO_IP, 51, 0x9c46 << 16 | 0x9c40},
};
static const struct option IPV6_OPTIONS[] = {
    {IPPROTO_IPV6, IPV6_V6ONLY, 1},       {IPPROTO_IPV6, IPV6_UNICAST_HOPS, 31},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, 2}, {IPPROTO_IPV6, IPV6_RECVERR, 1},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, 1},  {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, 1},   {IPPROTO_IPV6, IPV6_TCLASS, 0x30},
    {IPPROTO_IPV6, IPV6_DONTFRAG, 1},     {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 6},
    {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0}, {IPPROTO_IPV6, IPV6_RECVPATHMTU, 1},
    {IPPROTO_IPV6, 72, 2},                {IPPROTO_IPV6, 73, 5},
    // IPV6_2292PKTINFO, _2292HOPOPTS, _2292DSTOPTS, _2292RTHDR, _2292HOPLIMIT, IPV6_FLOWINFO.
    {IPPROTO_IPV6, 2, 1},                 {IPPROTO_IPV6, 3, 1},
    {IPPROTO_IPV6, 4, 1},                 {IPPROTO_IPV6, 5, 1},
    {IPPROTO_IPV6, 8, 1},                 {IPPROTO_IPV6, 11, 1},
};
static const struct option TCP_OPTIONS[] = {
    {IPPROTO_TCP, TCP_NODELAY, 1},       {IPPROTO_TCP, TCP_MAXSEG, 1000},     {IPPROTO_TCP, TCP_CORK, 1},
    {IPPROTO_TCP, TCP_KEEPIDLE, 77},     {IPPROTO_TCP, TCP_KEEPINTVL, 12},    {IPPROTO_TCP, TCP_KEEPCNT, 4},
    {IPPROTO_TCP, TCP_SYNCNT, 3},        {IPPROTO_TCP, TCP_LINGER2, 11},      {IPPROTO_TCP, TCP_DEFER_ACCEPT, 7},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, 65535}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 3210},
    {IPPROTO_TCP, TCP_FASTOPEN, 5},      {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384}, {IPPROTO_TCP, TCP_SAVE_SYN, 1},
};
static const struct option UDP_OPTIONS[] = {
    {SOL_SOCKET, SO_BROADCAST, 1},   {SOL_SOCKET, SO_PEEK_OFF, 0}, {SOL_SOCKET, SO_NO_CHECK, 1},
    {IPPROTO_UDP, UDP_SEGMENT, 900}, {IPPROTO_UDP, UDP_GRO, 1},   {IPPROTO_IP, IP_MULTICAST_TTL, 4},
    {IPPROTO_IP, IP_MULTICAST_LOOP, 0},
};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])
#define SOCKETS 4
#define MOST 128

static struct option expected[SOCKETS][MOST];
static int fds[SOCKETS], counts[SOCKETS];

// What the kernel makes of the value is what has to come back.
static void set_all(int which, const struct option *table, size_t count) {
    for (size_t at = 0; at < count; at++) {
        struct option option = table[at];
        int fd = fds[which], before = get(fd, option.level, option.name);
        if (setsockopt(fd, option.level, option.name, &option.value, sizeof option.value) < 0) {
            note("no option %d of level %d: %s", option.name, option.level, strerror(errno));
            continue;
        }
        option.value = get(fd, option.level, option.name);
        CHECK(option.value != before, "option %d of level %d: was %d before", option.name, option.level, before);
        expected[which][counts[which]++] = option;
    }
}

static void expect_all(int which) {
    for (int at = 0; at < counts[which]; at++) {
        struct option *option = &expected[which][at];
        expect_option(fds[which], option->level, option->name, option->value);
    }
}

static struct sock_filter instructions[] = {
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 8), // the first byte after the header of UDP
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'y', 0, 1),
    BPF_STMT(BPF_RET | BPF_K, 0xffff),
    BPF_STMT(BPF_RET | BPF_K, 0),
};

static void through_filter(int fd, const union address *at) {
    int sender = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    char byte = 0;
    CHECK(sendto(sender, "no", 2, 0, &at->any, length_of(at)) == 2, "sendto: %s", strerror(errno));
    CHECK(sendto(sender, "yes", 3, 0, &at->any, length_of(at)) == 3, "sendto: %s", strerror(errno));
    CHECK(recv(fd, &byte, 1, 0) == 1 && byte == 'y', "filter: expected y, saw %c", byte);
}

int main(void) {
    union address at = v4("127.0.0.1", own_port());
    fds[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
    fds[1] = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    fds[2] = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    fds[3] = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    for (int which = 0; which < SOCKETS; which++) {
        set_all(which, IP_OPTIONS_, COUNT(IP_OPTIONS_));
        set_all(which, SOCKET_OPTIONS, COUNT(SOCKET_OPTIONS));
        if (which & 1) set_all(which, IPV6_OPTIONS, COUNT(IPV6_OPTIONS));
        if (which < 2) set_all(which, TCP_OPTIONS, COUNT(TCP_OPTIONS));
        if (which > 1) set_all(which, UDP_OPTIONS, COUNT(UDP_OPTIONS));
    }
    struct linger linger = {1, 5}, linger_now = {0};
    struct timeval timeout = {3, 250000}, timeout_now = {0};
    MUST(setsockopt(fds[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    MUST(setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout));
    MUST(setsockopt(fds[0], IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    MUST(setsockopt(fds[2], SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    int plain = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sock_fprog filter = {COUNT(instructions), instructions};
    MUST(setsockopt(plain, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    set(plain, SOL_SOCKET, SO_LOCK_FILTER, 1);
    bind_to(plain, &at);
    MUST(fchown(plain, 1234, 4321));
    static const unsigned char records[8] = {7, 7, 4}; // IPOPT_RR, which takes its part of every segment
    unsigned char records_now[sizeof records] = {0};
    int recording = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(recording, IPPROTO_IP, IP_OPTIONS, records, sizeof records));
    int unlocked = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    set(unlocked, SOL_SOCKET, SO_RCVBUF, 50000);
    int may_resize = setsockopt(unlocked, SOL_SOCKET, 72 /* SO_BUF_LOCK */, &(int){0}, sizeof(int)) == 0;
    int size = get(unlocked, SOL_SOCKET, SO_RCVBUF);
    ready_and_wait();
    expect_option(unlocked, SOL_SOCKET, SO_RCVBUF, size);
    if (may_resize) expect_option(unlocked, SOL_SOCKET, 72, 0);
    socklen_t recorded = sizeof records_now;
    MUST(getsockopt(recording, IPPROTO_IP, IP_OPTIONS, records_now, &recorded));
    CHECK(recorded == sizeof records && !memcmp(records, records_now, recorded), "IP_OPTIONS: saw %u bytes", recorded);
    for (int which = 0; which < SOCKETS; which++) expect_all(which);
    socklen_t bytes = sizeof linger_now;
    MUST(getsockopt(fds[0], SOL_SOCKET, SO_LINGER, &linger_now, &bytes));
    CHECK(linger_now.l_onoff == 1 && linger_now.l_linger == 5, "SO_LINGER: saw %d", linger_now.l_linger);
    bytes = sizeof timeout_now;
    MUST(getsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &timeout_now, &bytes));
    CHECK(timeout_now.tv_sec == 3 && timeout_now.tv_usec >= 250000, "SO_RCVTIMEO: saw %ld s", timeout_now.tv_sec);
    char name[16] = "", device[16] = "";
    bytes = sizeof name;
    MUST(getsockopt(fds[0], IPPROTO_TCP, TCP_CONGESTION, name, &bytes));
    CHECK(!strcmp(name, "reno"), "TCP_CONGESTION: expected reno, saw %s", name);
    bytes = sizeof device;
    MUST(getsockopt(fds[2], SOL_SOCKET, SO_BINDTODEVICE, device, &bytes));
    CHECK(!strcmp(device, "lo"), "SO_BINDTODEVICE: expected lo, saw %s", device);
    through_filter(plain, &at);
    REFUSED(setsockopt(plain, SOL_SOCKET, SO_DETACH_FILTER, &filter, sizeof filter), EPERM);
    pass();
}
