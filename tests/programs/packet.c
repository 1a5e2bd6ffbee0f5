// Packet sockets: bound to a device and a protocol, filtered, and a group that shares packets out.
#include "inet.h"
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>

static uint16_t protocol;

static int opened(int type, uint16_t received) {
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(received)};
    to.sll_ifindex = (int)if_nametoindex("lo");
    int fd = MUST(socket(AF_PACKET, type, 0));
    MUST(bind(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

static void send_frame(int fd, const char *text) {
    char frame[64] = {0};
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex("lo"), .sll_halen = 6};
    frame[12] = (char)(protocol >> 8), frame[13] = (char)protocol;
    strcpy(frame + 14, text);
    CHECK(sendto(fd, frame, sizeof frame, 0, (struct sockaddr *)&to, sizeof to) == sizeof frame, "sendto: %s",
          strerror(errno));
}

static int is_told(int fd, const char *text) {
    char frame[256] = {0};
    struct pollfd ready = {fd, POLLIN, 0};
    while (poll(&ready, 1, 200) == 1) {
        ssize_t got = MUST(recv(fd, frame, sizeof frame - 1, MSG_DONTWAIT));
        if (got == 64 && !strcmp(frame + 14, text)) return 1;
    }
    return 0;
}

static void expect_bound(int fd, uint16_t received, int interface) {
    struct sockaddr_ll name = {0};
    socklen_t bytes = sizeof name;
    MUST(getsockname(fd, (struct sockaddr *)&name, &bytes));
    CHECK(ntohs(name.sll_protocol) == received && name.sll_ifindex == interface,
          "expected protocol %#x on interface %d, saw %#x on %d", received, interface, ntohs(name.sll_protocol),
          name.sll_ifindex);
}

// Frames whose first byte behind the header is an 'a'.
static void take_a_only(int fd) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 'a', 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0xffff),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {4, code};
    MUST(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
}

static int is_let_through(const struct packet_mreq *group) {
    char line[256], address[16];
    const unsigned char *part = group->mr_address;
    sprintf(address, "%02x%02x%02x%02x%02x%02x", part[0], part[1], part[2], part[3], part[4], part[5]);
    FILE *all = fopen("/proc/net/dev_mcast", "r");
    int is_there = 0;
    while (fgets(line, sizeof line, all)) is_there |= strstr(line, address) != NULL;
    fclose(all);
    return is_there;
}

int main(void) {
    int lo = (int)if_nametoindex("lo");
    protocol = (uint16_t)(0x9000 | (getpid() & 0xfff)); // nobody else's
    int raw = opened(SOCK_RAW, protocol), cooked = opened(SOCK_DGRAM, ETH_P_ALL), picky = opened(SOCK_RAW, protocol);
    int idle = MUST(socket(AF_PACKET, SOCK_RAW, 0)), first = opened(SOCK_RAW, protocol), second = opened(SOCK_RAW, protocol);
    int ring = getenv("RING") ? opened(SOCK_RAW, protocol) : -1;
    struct packet_mreq promiscuous = {.mr_ifindex = lo, .mr_type = PACKET_MR_PROMISC};
    struct packet_mreq group = {.mr_ifindex = lo, .mr_type = PACKET_MR_MULTICAST, .mr_alen = 6, .mr_address = {1, 0, 94, 1}};
    group.mr_address[4] = (unsigned char)(getpid() >> 8), group.mr_address[5] = (unsigned char)getpid();
    int fanout = (getpid() & 0xffff) | PACKET_FANOUT_LB << 16;
    MUST(setsockopt(raw, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous));
    for (int times = 0; times < 2; times++)
        MUST(setsockopt(raw, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group));
    set(raw, SOL_PACKET, PACKET_AUXDATA, 1);
    set(raw, SOL_PACKET, PACKET_VERSION, TPACKET_V3);
    set(cooked, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    set(cooked, SOL_PACKET, PACKET_ORIGDEV, 1);
    set(first, SOL_PACKET, PACKET_FANOUT, fanout);
    set(second, SOL_PACKET, PACKET_FANOUT, fanout);
    take_a_only(picky);
    if (ring >= 0) {
        struct tpacket_req pages = {4096, 1, 2048, 2};
        MUST(setsockopt(ring, SOL_PACKET, PACKET_RX_RING, &pages, sizeof pages));
    }
    ready_and_wait();
    expect_bound(raw, protocol, lo);
    expect_bound(cooked, ETH_P_ALL, lo);
    expect_bound(idle, 0, 0);
    expect_option(raw, SOL_PACKET, PACKET_AUXDATA, 1);
    expect_option(raw, SOL_PACKET, PACKET_VERSION, TPACKET_V3);
    expect_option(cooked, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    expect_option(cooked, SOL_PACKET, PACKET_ORIGDEV, 1);
    expect_option(second, SOL_PACKET, PACKET_FANOUT, fanout);
    // As often as it was asked for, and no more.
    for (int left = 2; left > 0; left--) {
        CHECK(is_let_through(&group), "expected the device to let the group through, %d left", left);
        MUST(setsockopt(raw, SOL_PACKET, PACKET_DROP_MEMBERSHIP, &group, sizeof group));
    }
    CHECK(!is_let_through(&group), "expected the group to be gone");
    send_frame(idle, "bcd");
    CHECK(is_told(raw, "bcd"), "expected the frame on the raw socket");
    CHECK(!is_told(picky, "bcd"), "expected the filter to keep the frame away");
    send_frame(raw, "abc");
    CHECK(is_told(picky, "abc"), "expected the frame through the filter");
    CHECK(!is_told(idle, "abc"), "expected nothing on a socket that is not bound");
    // Each gets one of two.
    CHECK(is_told(first, "bcd") + is_told(first, "abc") + is_told(second, "bcd") + is_told(second, "abc") >= 1,
          "expected the group to share out what came");
    pass();
}
