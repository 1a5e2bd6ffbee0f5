// TCP connections stay the parent's. In a clone they look as if the peer had reset them: to read
// and write, to poll, to epoll with and without edges; and a new connection can be made.
#include "inet.h"
#include <sys/epoll.h>

static struct epoll_event watch(int fd, uint32_t events) {
    int epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = events, .data.u64 = 0x1234}, seen = {0};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    epoll_wait(epoll, &seen, 1, 0);
    close(epoll);
    return seen;
}

static int is_watched(int epoll) {
    struct epoll_event event = {0};
    int count = epoll_wait(epoll, &event, 1, 0);
    if (count == 1)
        CHECK(event.data.u64 == 7 && event.events & EPOLLHUP && event.events & EPOLLERR && event.events & EPOLLIN,
              "epoll: expected a hang-up and an error, saw %#x of %#lx", event.events, event.data.u64);
    return count;
}

static void exchange(int from, int to) {
    char byte = 0;
    CHECK(write(from, "x", 1) == 1, "write: %s", strerror(errno));
    CHECK(read(to, &byte, 1) == 1 && byte == 'x', "read: expected x, saw %d (%s)", byte, strerror(errno));
}

static void is_reset(int fd) {
    char byte;
    REFUSED(read(fd, &byte, 1), ECONNRESET);
    CHECK(read(fd, &byte, 1) == 0, "read after the reset: expected the end");
    REFUSED(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    union address peer;
    socklen_t bytes = sizeof peer;
    REFUSED(getpeername(fd, &peer.any, &bytes), ENOTCONN);
    expect_option(fd, SOL_SOCKET, SO_DOMAIN, AF_INET);
    expect_option(fd, SOL_SOCKET, SO_PROTOCOL, IPPROTO_TCP);
}

int main(void) {
    union address at = v4("127.0.0.1", own_port());
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    bind_to(listener, &at);
    MUST(listen(listener, 8));
    int client = connected_to(&at), server = MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    int half = connected_to(&at), other_half = MUST(accept(listener, NULL, NULL));
    MUST(shutdown(half, SHUT_WR));
    int dead = connected_to(&at), killer = MUST(accept(listener, NULL, NULL));
    struct linger now = {1, 0};
    MUST(setsockopt(killer, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    close(killer);
    int level = MUST(epoll_create1(0)), edge = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    MUST(epoll_ctl(level, EPOLL_CTL_ADD, server, &event));
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    MUST(epoll_ctl(edge, EPOLL_CTL_ADD, client, &event));
    struct epoll_event taken;
    epoll_wait(edge, &taken, 1, 0);
    CHECK(write(client, "unread", 6) == 6, "write: %s", strerror(errno));
    char text[6] = "";
    CHECK(recv(server, text, 6, MSG_PEEK) == 6, "peek: %s", strerror(errno));
    CHECK(read(server, text, 6) == 6, "read: %s", strerror(errno));
    int parent = getpid();
    ready_and_wait();
    CHECK(getpid() == parent, "pid: expected %d, saw %d", parent, getpid());
    char byte;
    CHECK(fcntl(server, F_GETFL) & O_NONBLOCK, "expected nonblocking");
    if (watch(client, EPOLLIN).events & EPOLLHUP) {
        note("a clone");
        CHECK(is_watched(level) && is_watched(edge), "epoll: expected an event");
        is_reset(server);
        is_reset(client);
        is_reset(half);
        is_reset(other_half);
    } else {
        CHECK(!is_watched(level), "epoll: expected nothing");
        exchange(client, server);
        exchange(server, client);
        CHECK(read(other_half, &byte, 1) == 0, "half-closed: expected the end");
        exchange(other_half, half);
    }
    is_reset(dead);
    close(client);
    close(server);
    serve_one(listener, &at);
    pass();
}
