// Addresses of the loopback device. Ports are the process's own: its pid, which no other program
// of the suite has, is below all ports that the kernel chooses.
#ifndef FARFORK_INET_H
#define FARFORK_INET_H

#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static inline uint16_t own_port(void) {
    int port = getpid();
    return (uint16_t)(port < 1024 ? port + 30000 : port);
}

// Another one, above all ports that the kernel chooses.
static inline uint16_t second_port(void) {
    return (uint16_t)(61000 + getpid() % 4500);
}

static inline socklen_t length_of(const union address *address) {
    return address->any.sa_family == AF_INET6 ? sizeof address->v6 : sizeof address->v4;
}

static inline union address v4(const char *text, uint16_t port) {
    union address made = {.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
    CHECK(inet_pton(AF_INET, text, &made.v4.sin_addr) == 1, "%s is no address", text);
    return made;
}

static inline union address v6(const char *text, uint16_t port) {
    union address made = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
    CHECK(inet_pton(AF_INET6, text, &made.v6.sin6_addr) == 1, "%s is no address", text);
    return made;
}

static inline void set(int fd, int level, int option, int value) {
    if (setsockopt(fd, level, option, &value, sizeof value) < 0)
        FAIL("option %d of level %d on fd %d: %s", option, level, fd, strerror(errno));
}

static inline int get(int fd, int level, int option) {
    int value = 0;
    socklen_t bytes = sizeof value;
    if (getsockopt(fd, level, option, &value, &bytes) < 0)
        FAIL("option %d of level %d on fd %d: %s", option, level, fd, strerror(errno));
    return value;
}

static inline void expect_option(int fd, int level, int option, int expected) {
    int value = get(fd, level, option);
    CHECK(value == expected, "option %d of level %d on fd %d: expected %d, saw %d", option, level, fd,
          expected, value);
}

static inline void expect_name(int fd, const union address *expected) {
    union address name = {0};
    socklen_t bytes = sizeof name;
    MUST(getsockname(fd, &name.any, &bytes));
    CHECK(bytes == length_of(expected) && !memcmp(&name, expected, bytes),
          "fd %d: expected to be bound to port %d, saw port %d", fd, ntohs(expected->v4.sin_port),
          ntohs(name.v4.sin_port));
}

static inline void bind_to(int fd, const union address *to) {
    if (bind(fd, &to->any, length_of(to)) < 0) FAIL("bind of fd %d: %s", fd, strerror(errno));
}

static inline int connected_to(const union address *to) {
    int fd = MUST(socket(to->any.sa_family, SOCK_STREAM, 0));
    if (connect(fd, &to->any, length_of(to)) < 0)
        FAIL("connect to port %d: %s", ntohs(to->v4.sin_port), strerror(errno));
    return fd;
}

// A byte goes each way through a new connection.
static inline void serve_one(int listener, const union address *to) {
    int client = connected_to(to), served = MUST(accept(listener, NULL, NULL));
    char byte = 0;
    CHECK(write(client, "a", 1) == 1 && read(served, &byte, 1) == 1 && byte == 'a', "to the server: saw %d", byte);
    CHECK(write(served, "b", 1) == 1 && read(client, &byte, 1) == 1 && byte == 'b', "to the client: saw %d", byte);
    close(client);
    close(served);
}

#endif
