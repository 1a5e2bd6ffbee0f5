// TCP on the loopback device.
#ifndef FARFORK_TCP_H
#define FARFORK_TCP_H

#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static inline int tcp_listener(struct sockaddr_in *bound) {
    *bound = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof *bound;
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(fd, (struct sockaddr *)bound, bytes));
    MUST(listen(fd, 4));
    MUST(getsockname(fd, (struct sockaddr *)bound, &bytes));
    return fd;
}

static inline int tcp_connect(const struct sockaddr_in *to) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(fd, (const struct sockaddr *)to, sizeof *to));
    return fd;
}

#endif
