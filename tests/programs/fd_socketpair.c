// Socket pairs whose both ends are inside: queued data both ways, message borders, shutdown.
#include "check.h"
#include <sys/socket.h>

static void put(int fd, const char *text) {
    CHECK(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text), "send: %s", strerror(errno));
}

static void get(int fd, const char *expected) {
    char text[64] = "";
    ssize_t got = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    CHECK(got == (ssize_t)strlen(expected) && !strcmp(text, expected), "recv: expected %s, saw %s (%s)",
          expected, text, got < 0 ? strerror(errno) : "");
}

static void borders(int pair[2]) {
    get(pair[1], "one");
    get(pair[1], "two");
    get(pair[0], "back");
    put(pair[0], "new");
    get(pair[1], "new");
}

int main(void) {
    int stream[2], dgram[2], seqpacket[2], half[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, stream));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, dgram));
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, seqpacket));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, half));
    put(stream[0], "to one");
    put(stream[1], "to zero");
    int *with_borders[] = {dgram, seqpacket};
    for (int i = 0; i < 2; i++) {
        put(with_borders[i][0], "one");
        put(with_borders[i][0], "two");
        put(with_borders[i][1], "back");
    }
    put(half[0], "last words");
    MUST(shutdown(half[0], SHUT_WR));
    int room = 100000, kept = 0;
    MUST(setsockopt(stream[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room));
    socklen_t bytes = sizeof room;
    MUST(getsockopt(stream[0], SOL_SOCKET, SO_SNDBUF, &room, &bytes));
    ready_and_wait();
    get(stream[1], "to one");
    get(stream[0], "to zero");
    put(stream[1], "more");
    get(stream[0], "more");
    borders(dgram);
    borders(seqpacket);
    get(half[1], "last words");
    get(half[1], "");
    put(half[1], "other way");
    get(half[0], "other way");
    MUST(getsockopt(stream[0], SOL_SOCKET, SO_SNDBUF, &kept, &bytes));
    CHECK(kept == room, "SO_SNDBUF: expected %d, saw %d", room, kept);
    CHECK(fcntl(dgram[0], F_GETFL) & O_NONBLOCK, "dgram: expected nonblocking");
    CHECK(fcntl(seqpacket[1], F_GETFD) == FD_CLOEXEC, "seqpacket: expected close-on-exec");
    pass();
}
