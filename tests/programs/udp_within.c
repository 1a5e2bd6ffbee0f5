// UDP sockets that send to themselves and to each other by their addresses, or were shut down. Beside the
// parent no clone starts: its datagrams would reach the parent.
#include "inet.h"

static int datagram(const union address *at) {
    int fd = MUST(socket(at->any.sa_family, SOCK_DGRAM, 0));
    bind_to(fd, at);
    return fd;
}

static void join(int fd, const union address *to) { MUST(connect(fd, &to->any, length_of(to))); }

static void arrives(int from, int at, char byte) {
    char seen = 0;
    struct pollfd ready = {at, POLLIN, 0};
    CHECK(send(from, &byte, 1, 0) == 1, "send: %s", strerror(errno));
    poll(&ready, 1, 2000);
    ssize_t got = recv(at, &seen, 1, MSG_DONTWAIT);
    CHECK(got == 1 && seen == byte, "expected %c, saw %c (%s)", byte, seen, got < 0 ? strerror(errno) : "");
}

int main(void) {
    union address one = v4("127.0.0.1", own_port()), two = v4("127.0.0.2", own_port());
    union address all = v4("0.0.0.0", 0), six = v6("::1", own_port()), mute_at = v4("127.0.0.4", own_port());
    int self = datagram(&one), self6 = datagram(&six);
    join(self, &one);
    join(self6, &six);
    union address left_at = v4("127.0.0.3", own_port()), right_at = two;
    int left = datagram(&left_at), right = datagram(&right_at);
    join(left, &right_at);
    join(right, &left_at);
    int server = datagram(&all), client = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    socklen_t bytes = sizeof all;
    MUST(getsockname(server, &all.any, &bytes));
    union address server_at = v4("127.0.0.1", ntohs(all.v4.sin_port));
    join(client, &server_at);
    int mute = datagram(&mute_at);
    join(mute, &two);
    MUST(shutdown(mute, SHUT_WR));
    int deaf = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    join(deaf, &two);
    MUST(shutdown(deaf, SHUT_RD));
    arrives(self, self, 'a');
    ready_and_wait();
    arrives(self, self, 'b');
    arrives(self6, self6, 'c');
    arrives(left, right, 'd');
    arrives(right, left, 'e');
    arrives(client, server, 'f');
    char byte = 'x';
    REFUSED(send(mute, &byte, 1, MSG_NOSIGNAL), EPIPE);
    CHECK(recv(deaf, &byte, 1, 0) == 0, "expected the end, saw a datagram");
    pass();
}
