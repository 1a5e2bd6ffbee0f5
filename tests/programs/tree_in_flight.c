// Descriptors in flight in a tree: what waits in sockets between its processes to be received, which
// nobody has besides, or others have too, or which is itself a socket with something waiting.
#include "tree.h"
#include <sys/eventfd.h>
#include <sys/mman.h>

static int across[2], inner[2], down[2], counter;

static void put(int fd, const char *text, int sent) {
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec bytes = {(void *)text, strlen(text)};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(head), &sent, sizeof sent);
    CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)strlen(text), "sendmsg of %s: %s", text, strerror(errno));
}

static int get(int fd, const char *expected) {
    char text[64] = {0};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec bytes = {text, sizeof text - 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t length = recvmsg(fd, &message, MSG_DONTWAIT);
    CHECK(length == (ssize_t)strlen(expected) && !strcmp(text, expected), "expected %s, saw %s (%s)", expected, text,
          length < 0 ? strerror(errno) : "");
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    CHECK(head && head->cmsg_type == SCM_RIGHTS, "%s: expected a descriptor", expected);
    int got;
    memcpy(&got, CMSG_DATA(head), sizeof got);
    return got;
}

static void takes(int fd, const char *expected) {
    char text[64] = {0};
    ssize_t got = read(fd, text, strlen(expected));
    CHECK(got == (ssize_t)strlen(expected) && !strcmp(text, expected), "expected '%s', saw '%s' (%s)", expected, text,
          got < 0 ? strerror(errno) : "");
}

// Receives what its parent sent before both were checkpointed.
static void receiver(void) {
    close(across[0]), close(inner[0]), close(inner[1]), close(down[0]);
    MUST(fcntl(across[1], F_SETFL, O_NONBLOCK));
    in_place();
    uint64_t count = 0;
    int other = get(across[1], "counter");
    CHECK(is_one_file(getpid(), other, getpid(), counter), "expected the counter that all have");
    int memory = get(across[1], "memory"), pipe_end = get(across[1], "pipe"), socket = get(across[1], "socket");
    CHECK(read(other, &count, sizeof count) == sizeof count && count == 12, "counter: expected 12, saw %lu", (unsigned long)count);
    char byte = 0;
    CHECK(pread(memory, &byte, 1, 4095) == 1 && byte == 'm', "memory: saw %d (%s)", byte, strerror(errno));
    takes(pipe_end, "through the pipe");
    takes(get(socket, "nested"), "in a pipe in a socket in a socket");
    char end;
    CHECK(recv(socket, &end, 1, MSG_DONTWAIT) == 0, "expected the end of the other side");
}

int main(void) {
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, across));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, inner));
    MUST(pipe(down));
    counter = MUST(eventfd(7, 0));
    struct child one = child(receiver);
    // What nobody has but the message, and what all have.
    int memory = MUST(memfd_create("in flight", 0)), nested[2];
    MUST(ftruncate(memory, 8192));
    CHECK(pwrite(memory, "m", 1, 4095) == 1, "write: %s", strerror(errno));
    MUST(pipe(nested));
    CHECK(write(nested[1], "in a pipe in a socket in a socket", 33) == 33, "write: %s", strerror(errno));
    put(inner[0], "nested", nested[0]);
    put(across[0], "counter", counter);
    put(across[0], "memory", memory);
    put(across[0], "pipe", down[0]);
    put(across[0], "socket", inner[1]);
    close(memory), close(nested[0]), close(nested[1]), close(down[0]), close(inner[0]), close(inner[1]);
    CHECK(write(down[1], "through ", 8) == 8, "write: %s", strerror(errno));
    ready_and_wait();
    CHECK(write(down[1], "the pipe", 8) == 8, "write: %s", strerror(errno));
    MUST(eventfd_write(counter, 5));
    tell_and_reap(one);
    pass();
}
