// Unix sockets that others find by an abstract name, connections by such a name within the
// process, those that nobody has connected, and what was set on them.
#include "check.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

struct name {
    struct sockaddr_un at;
    socklen_t bytes;
};

static struct name own_name(const char *what) {
    struct name name = {.at = {.sun_family = AF_UNIX}};
    int length = snprintf(name.at.sun_path + 1, sizeof name.at.sun_path - 1, "farfork-%d-%s", getpid(), what);
    name.bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return name;
}

static int bound(const struct name *name, int kind) {
    int fd = MUST(socket(AF_UNIX, kind, 0));
    MUST(bind(fd, (const struct sockaddr *)&name->at, name->bytes));
    return fd;
}

static int connected(const struct name *name, int kind) {
    int fd = MUST(socket(AF_UNIX, kind, 0));
    MUST(connect(fd, (const struct sockaddr *)&name->at, name->bytes));
    return fd;
}

static void expect_name(int fd, const struct name *expected) {
    struct sockaddr_un at = {0};
    socklen_t bytes = sizeof at;
    MUST(getsockname(fd, (struct sockaddr *)&at, &bytes));
    CHECK(bytes == expected->bytes && !memcmp(&at, &expected->at, bytes), "name: expected %s, saw %s",
          expected->at.sun_path + 1, at.sun_path + 1);
}

static void put(int fd, const char *text) {
    ssize_t sent = send(fd, text, strlen(text), MSG_NOSIGNAL);
    CHECK(sent == (ssize_t)strlen(text), "send of %s: %s", text, strerror(errno));
}

static void get(int fd, const char *expected) {
    char text[64] = "";
    ssize_t got = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    CHECK(got == (ssize_t)strlen(expected) && !strcmp(text, expected), "recv: expected %s, saw %s (%s)",
          expected, text, got < 0 ? strerror(errno) : "");
}

static void serve(int listener, const struct name *name, int kind) {
    int client = connected(name, kind), served = MUST(accept(listener, NULL, NULL));
    put(client, "question");
    get(served, "question");
    put(served, "answer");
    get(client, "answer");
    close(client);
    close(served);
}

static void expect_sender(int fd, pid_t pid) {
    char byte, room[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    CHECK(recvmsg(fd, &message, MSG_DONTWAIT) == 1, "recvmsg: %s", strerror(errno));
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    CHECK(control && control->cmsg_type == SCM_CREDENTIALS, "expected credentials with a message");
    struct ucred sender;
    memcpy(&sender, CMSG_DATA(control), sizeof sender);
    CHECK(sender.pid == pid, "sender: expected %d, saw %d", pid, sender.pid);
}

int main(void) {
    struct name stream = own_name("stream"), packets = own_name("packets"), datagrams = own_name("datagrams");
    int listener = bound(&stream, SOCK_STREAM | SOCK_NONBLOCK), other = bound(&packets, SOCK_SEQPACKET);
    MUST(listen(listener, 3));
    MUST(listen(other, 4));
    int client = connected(&stream, SOCK_STREAM), server = MUST(accept(listener, NULL, NULL));
    put(client, "to the server");
    put(server, "to the client");
    MUST(shutdown(client, SHUT_WR));
    int packet_client = connected(&packets, SOCK_SEQPACKET), packet_server = MUST(accept(other, NULL, NULL));
    put(packet_client, "one");
    put(packet_client, "two");
    int receiver = bound(&datagrams, SOCK_DGRAM), sender = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
    int one = 1;
    MUST(setsockopt(receiver, SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct timeval timeout = {0, 20000};
    MUST(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout));
    MUST(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
    int parent = getpid();
    ready_and_wait();
    expect_name(listener, &stream);
    expect_name(other, &packets);
    expect_name(receiver, &datagrams);
    CHECK(fcntl(listener, F_GETFL) & O_NONBLOCK, "expected nonblocking");
    REFUSED(accept(listener, NULL, NULL), EAGAIN);
    get(server, "to the server");
    get(server, "");
    get(client, "to the client");
    REFUSED(send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
    get(packet_server, "one");
    get(packet_server, "two");
    put(packet_server, "three");
    get(packet_client, "three");
    serve(listener, &stream, SOCK_STREAM);
    serve(other, &packets, SOCK_SEQPACKET);
    MUST(connect(sender, (struct sockaddr *)&datagrams.at, datagrams.bytes));
    put(sender, "d");
    expect_sender(receiver, parent);
    char byte;
    REFUSED(read(pair[0], &byte, 1), EAGAIN);
    put(pair[0], "p");
    expect_sender(pair[1], parent);
    pass();
}
