// Netlink sockets: groups joined in both ways, port, options, and that the kernel answers.
#include "check.h"
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

// One that no address can name.
#define FAR_GROUP 35 // RTNLGRP_TUNNEL

struct request {
    struct nlmsghdr head;
    struct ifaddrmsg body;
    struct rtattr attribute;
    struct in_addr address;
};

// An address of the loopback device that no other program of the suite has.
static struct in_addr own_address(void) {
    return (struct in_addr){htonl(0x7f090000u | (uint32_t)getpid())};
}

static void change_address(int fd, uint16_t type, uint16_t flags) {
    struct request request = {
        .head = {sizeof request, type, (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags), 1, 0},
        .body = {AF_INET, 32, 0, RT_SCOPE_HOST, 1},
        .attribute = {RTA_LENGTH(sizeof(struct in_addr)), IFA_LOCAL},
        .address = own_address(),
    };
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    char answer[4096];
    CHECK(sendto(fd, &request, sizeof request, 0, (struct sockaddr *)&kernel, sizeof kernel) > 0, "sendto: %s",
          strerror(errno));
    ssize_t got = recv(fd, answer, sizeof answer, 0);
    struct nlmsghdr *head = (struct nlmsghdr *)answer;
    CHECK(got >= (ssize_t)NLMSG_LENGTH(sizeof(int)) && head->nlmsg_type == NLMSG_ERROR, "expected an answer");
    int error = *(int *)NLMSG_DATA(head);
    CHECK(error == 0, "type %d: expected success, saw %s", type, strerror(-error));
}

static uint32_t own_group;

// A group of processes that no other program of the suite is in meanwhile: a name of its number is held,
// which there is once in a network namespace, as groups are.
static uint32_t free_group(void) {
    int name = MUST(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (unsigned tried = 0; tried < 31; tried++) {
        unsigned number = ((unsigned)getpid() + tried) % 31;
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        int length = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "farfork test: netlink group %u", number);
        if (bind(name, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) == 0)
            return 1u << number;
        CHECK(errno == EADDRINUSE, "bind: %s", strerror(errno));
    }
    FAIL("%s", "all groups are taken");
}

static void expect_message(int fd, const char *text) {
    struct sockaddr_nl everyone = {.nl_family = AF_NETLINK, .nl_groups = own_group};
    int sender = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_USERSOCK));
    // The kernel is sent it too, refuses it, and says so.
    REFUSED(sendto(sender, text, 4, 0, (struct sockaddr *)&everyone, sizeof everyone), ECONNREFUSED);
    struct pollfd ready = {fd, POLLIN, 0};
    char seen[4] = "";
    CHECK(poll(&ready, 1, 1000) == 1 && recv(fd, seen, 4, 0) == 4 && !memcmp(seen, text, 4), "expected %s, saw %.4s",
          text, seen);
    close(sender);
}

static void expect_groups(int fd, uint32_t expected, uint32_t beyond) {
    uint32_t groups[8] = {0};
    socklen_t bytes = sizeof groups;
    MUST(getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, groups, &bytes));
    CHECK(groups[0] == expected && groups[1] == beyond, "groups: expected %#x and %#x, saw %#x and %#x", expected,
          beyond, groups[0], groups[1]);
}

static int opened(int protocol, uint32_t groups) {
    int fd = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
    struct sockaddr_nl own = {.nl_family = AF_NETLINK, .nl_groups = groups};
    MUST(bind(fd, (struct sockaddr *)&own, sizeof own));
    return fd;
}

static uint32_t port_of(int fd) {
    struct sockaddr_nl name;
    socklen_t bytes = sizeof name;
    MUST(getsockname(fd, (struct sockaddr *)&name, &bytes));
    return name.nl_pid;
}

int main(void) {
    // The kernel sends to group 1 alone, e.g. whenever a test mounts a file system.
    int one = 1, group = RTNLGRP_TC, far = FAR_GROUP, value = 0;
    int asks = opened(NETLINK_ROUTE, 0), events = opened(NETLINK_KOBJECT_UEVENT, 2);
    int unbound = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
    MUST(setsockopt(asks, SOL_NETLINK, NETLINK_EXT_ACK, &one, sizeof one));
    MUST(setsockopt(asks, SOL_NETLINK, NETLINK_CAP_ACK, &one, sizeof one));
    uint32_t port = port_of(asks);
    own_group = free_group();
    int hearing = opened(NETLINK_USERSOCK, own_group);
    MUST(setsockopt(unbound, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group));
    MUST(setsockopt(unbound, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &far, sizeof far));
    expect_message(hearing, "one");
    ready_and_wait();
    CHECK(port_of(asks) == port, "port: expected %u, saw %u", port, port_of(asks));
    socklen_t bytes = sizeof value;
    MUST(getsockopt(asks, SOL_NETLINK, NETLINK_EXT_ACK, &value, &bytes));
    CHECK(value == 1, "NETLINK_EXT_ACK: saw %d", value);
    expect_groups(events, 2, 0);
    expect_groups(unbound, 1u << (RTNLGRP_TC - 1), 1u << (FAR_GROUP - 33));
    expect_groups(hearing, own_group, 0);
    expect_message(hearing, "two");
    change_address(asks, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE);
    change_address(unbound, RTM_DELADDR, 0);
    pass();
}
