// TCP connections that go on in a clone which takes the place of its parent: their peers are
// processes of their own, which never learn of it. Every byte arrives once, in order, also those
// that wait in the queues of both ends, and those that were never sent.
#include "inet.h"
#include <signal.h>
#include <sys/stat.h>

#define ALL (8 * MIB)
#define UP 11
#define DOWN 12

static char go[64];

static uint8_t stream_byte(size_t at, unsigned seed) {
    return pattern(at, seed);
}

// Fills `bytes` with what stands at `at` in the stream.
static void part_of(uint8_t *bytes, size_t count, size_t at, unsigned seed) {
    for (size_t i = 0; i < count; i++) bytes[i] = stream_byte(at + i, seed);
}

static int is_part_of(const uint8_t *bytes, size_t count, size_t at, unsigned seed) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != stream_byte(at + i, seed)) return 0;
    return 1;
}

// The peer's half that sends all of a stream.
static void send_stream(int fd) {
    static uint8_t bytes[4096];
    for (size_t at = 0; at < ALL; at += sizeof bytes) {
        part_of(bytes, sizeof bytes, at, DOWN);
        for (size_t sent = 0; sent < sizeof bytes;) {
            ssize_t part = send(fd, bytes + sent, sizeof bytes - sent, MSG_NOSIGNAL);
            if (part <= 0) _exit(1);
            sent += (size_t)part;
        }
    }
    _exit(0);
}

// The peer's half that receives, when it may, and says so if all was right.
static void receive_stream(int fd) {
    static uint8_t bytes[1 << 16];
    struct stat info;
    while (stat(go, &info) < 0) usleep(2000);
    for (size_t at = 0; at < ALL;) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        if (got <= 0 || !is_part_of(bytes, (size_t)got, at, UP)) _exit(1);
        at += (size_t)got;
    }
    if (recv(fd, bytes, 1, 0) != 0) _exit(1);
    // What the other half has yet to send goes first: it is as long as what was received.
    usleep(100000);
    _exit(0);
}

static void echo(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) == 1)
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) break;
    _exit(0);
}

static void serve(int fd, void (*how)(int)) {
    pid_t half = fork();
    if (half) return;
    how(fd);
}

// Processes of their own, that nothing but the connections leads to.
static void peers(int four, int six, const union address *ours) {
    pid_t child = MUST(fork());
    if (child) return reap(child);
    if (fork()) _exit(0);
    setsid();
    signal(SIGCHLD, SIG_IGN);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    alarm(100);
    int stream = accept(four, NULL, NULL);
    serve(stream, send_stream);
    serve(stream, receive_stream);
    close(stream);
    serve(accept(four, NULL, NULL), echo);
    serve(accept(six, NULL, NULL), echo);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    while (connect(client, &ours->any, length_of(ours)) < 0) usleep(1000);
    serve(client, echo);
    _exit(0);
}

static int listener(const union address *at) {
    int fd = MUST(socket(at->any.sa_family, SOCK_STREAM, 0));
    bind_to(fd, at);
    MUST(listen(fd, 4));
    return fd;
}

static void echoes(int fd) {
    char byte = 0;
    CHECK(send(fd, "e", 1, MSG_NOSIGNAL) == 1, "send on fd %d: %s", fd, strerror(errno));
    CHECK(recv(fd, &byte, 1, 0) == 1 && byte == 'e', "echo on fd %d: saw %d (%s)", fd, byte, strerror(errno));
}

static size_t send_some(int fd, size_t sent) {
    static uint8_t bytes[4096];
    size_t left = ALL - sent < sizeof bytes ? ALL - sent : sizeof bytes;
    part_of(bytes, left, sent, UP);
    ssize_t part = send(fd, bytes, left, MSG_NOSIGNAL | MSG_DONTWAIT);
    CHECK(part >= 0 || errno == EAGAIN, "send of byte %zu: %s", sent, strerror(errno));
    return part < 0 ? 0 : (size_t)part;
}

static void exchange(int fd, size_t sent) {
    static uint8_t bytes[1 << 16];
    size_t received = 0;
    while (sent < ALL || received < ALL) {
        struct pollfd ready = {fd, (short)(POLLIN | (sent < ALL ? POLLOUT : 0)), 0};
        CHECK(poll(&ready, 1, 30000) == 1, "nothing moves: %zu sent, %zu received", sent, received);
        CHECK(!(ready.revents & POLLERR), "error after %zu sent, %zu received", sent, received);
        if (ready.revents & POLLOUT) sent += send_some(fd, sent);
        if (!(ready.revents & POLLIN)) continue;
        ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        CHECK(got > 0, "receive after %zu bytes: %s", received, got ? strerror(errno) : "the end");
        CHECK(is_part_of(bytes, (size_t)got, received, DOWN), "wrong bytes after %zu", received);
        received += (size_t)got;
    }
    MUST(shutdown(fd, SHUT_WR));
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0, "the peer has not seen what was sent: %s", strerror(errno));
}

int main(void) {
    uint16_t port = own_port();
    union address four = v4("127.0.0.1", port), six = v6("::1", port), ours = v4("127.0.0.1", second_port());
    snprintf(go, sizeof go, "go-%d", getpid());
    int theirs[] = {listener(&four), listener(&six)};
    peers(theirs[0], theirs[1], &ours);
    int spare = MUST(dup(0)), own = listener(&ours);
    close(theirs[0]);
    close(theirs[1]);
    // In the order in which the peer accepts.
    int busy = connected_to(&four), quick = connected_to(&four), wide = connected_to(&six);
    int served = MUST(accept(own, NULL, NULL));
    // Below the number of what listens at its port.
    served = MUST(dup2(served, spare));
    set(quick, IPPROTO_TCP, TCP_NODELAY, 1);
    set(quick, SOL_SOCKET, SO_REUSEADDR, 1);
    set(quick, SOL_SOCKET, SO_RCVBUF, 50000);
    int room = get(quick, SOL_SOCKET, SO_RCVBUF);
    echoes(quick);
    echoes(wide);
    echoes(served);
    size_t sent = 0;
    for (int idle = 0; idle < 20;) {
        size_t part = send_some(busy, sent);
        sent += part;
        idle = part ? 0 : idle + 1;
        if (!part) usleep(5000);
    }
    CHECK(sent < ALL, "expected queues to be full");
    union address name, peer;
    socklen_t bytes = sizeof name;
    MUST(getsockname(busy, &name.any, &bytes));
    ready_and_wait();
    expect_name(busy, &name);
    bytes = sizeof peer;
    MUST(getpeername(busy, &peer.any, &bytes));
    CHECK(!memcmp(&peer, &four, bytes), "expected the same peer");
    expect_option(quick, IPPROTO_TCP, TCP_NODELAY, 1);
    expect_option(quick, SOL_SOCKET, SO_REUSEADDR, 1);
    expect_option(wide, SOL_SOCKET, SO_REUSEADDR, 0);
    expect_option(busy, IPPROTO_TCP, TCP_NODELAY, 0);
    expect_option(quick, SOL_SOCKET, SO_RCVBUF, room);
    echoes(quick);
    echoes(wide);
    echoes(served);
    close(MUST(open(go, O_CREAT | O_WRONLY, 0600)));
    exchange(busy, sent);
    unlink(go);
    int client = connected_to(&ours), accepted = MUST(accept(own, NULL, NULL));
    CHECK(send(client, "n", 1, 0) == 1 && recv(accepted, go, 1, 0) == 1, "a new connection: %s", strerror(errno));
    pass();
}
