// Descriptors in flight: what waits in Unix sockets with SCM_RIGHTS, in streams, packets and
// datagrams, from ends that are closed and to sockets that are in flight themselves; and the
// credentials of messages.
#include "check.h"
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#define MOST 8

struct got {
    char text[64];
    int fds[MOST];
    int count;
    int has_sender;
    struct ucred sender;
};

static void put(int fd, const char *text, int count, const int *fds) {
    union {
        char room[CMSG_SPACE(sizeof(int) * MOST)];
        struct cmsghdr align;
    } control = {0};
    struct iovec bytes = {(void *)text, strlen(text)};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count)};
        memcpy(CMSG_DATA(head), fds, sizeof(int) * (size_t)count);
    }
    CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)strlen(text), "sendmsg of %s: %s", text, strerror(errno));
}

static void put_one(int fd, const char *text, int sent) {
    put(fd, text, 1, &sent);
}

// At most `most` bytes, which must be `expected`, with so many descriptors.
static struct got get(int fd, size_t most, const char *expected, int count) {
    struct got got = {0};
    union {
        char room[CMSG_SPACE(sizeof(int) * MOST) + CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    struct iovec bytes = {got.text, most < sizeof got.text ? most : sizeof got.text - 1};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t length = recvmsg(fd, &message, MSG_DONTWAIT);
    CHECK(length == (ssize_t)strlen(expected) && !strcmp(got.text, expected), "recvmsg: expected %s, saw %s (%s)",
          expected, got.text, length < 0 ? strerror(errno) : "");
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_type == SCM_RIGHTS) {
            got.count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(got.fds, CMSG_DATA(head), sizeof(int) * (size_t)got.count);
        } else if (head->cmsg_type == SCM_CREDENTIALS) {
            got.has_sender = 1;
            memcpy(&got.sender, CMSG_DATA(head), sizeof got.sender);
        }
    }
    CHECK(got.count == count, "%s: expected %d descriptors, saw %d", expected, count, got.count);
    return got;
}

static int get_one(int fd, const char *expected) {
    return get(fd, 64, expected, 1).fds[0];
}

static void passes_bytes(int from, int to) {
    char byte = 0;
    CHECK(write(from, "p", 1) == 1 && read(to, &byte, 1) == 1 && byte == 'p', "through fds %d, %d: saw %d (%s)", from,
          to, byte, strerror(errno));
}

static void expect_sender(struct got got, pid_t pid, uid_t user) {
    CHECK(got.has_sender && got.sender.pid == pid && got.sender.uid == user,
          "sender: expected process %d of user %u, saw %d of %u", pid, user, got.sender.pid, got.sender.uid);
}

static void expect_no_sender(struct got got) {
    CHECK(got.has_sender && got.sender.pid == 0, "sender: expected nobody, saw %d", got.sender.pid);
}

static void set(int fd, int option) {
    int one = 1;
    MUST(setsockopt(fd, SOL_SOCKET, option, &one, sizeof one));
}

static void pair_of(int kind, int pair[2]) {
    MUST(socketpair(AF_UNIX, kind, 0, pair));
}

static uint64_t count_of(int fd) {
    uint64_t count = 0;
    CHECK(read(fd, &count, sizeof count) == sizeof count, "eventfd: %s", strerror(errno));
    return count;
}

int main(void) {
    int stream[2], packets[2], datagrams[2], closed[2], inner[2], own[2], named[2], crowded[2], back[2];
    pair_of(SOCK_STREAM, stream);
    pair_of(SOCK_SEQPACKET, packets);
    pair_of(SOCK_DGRAM, datagrams);
    pair_of(SOCK_STREAM, closed);
    pair_of(SOCK_SEQPACKET, inner);
    pair_of(SOCK_DGRAM, own);
    pair_of(SOCK_SEQPACKET, named);
    pair_of(SOCK_STREAM, crowded);
    int pipe_ends[2], kept = MUST(eventfd(7, 0)), sent = MUST(eventfd(40, EFD_NONBLOCK | EFD_SEMAPHORE));
    MUST(pipe(pipe_ends));
    // A stream: bytes before, descriptors with some, bytes after.
    put(stream[0], "one", 0, NULL);
    put_one(stream[0], "two", pipe_ends[0]);
    put(stream[0], "three", 3, (int[]){kept, sent, kept});
    put(stream[0], "four", 0, NULL);
    put(stream[1], "reply", 0, NULL);
    MUST(shutdown(stream[0], SHUT_WR));
    close(pipe_ends[0]);
    close(sent);
    // Packets: shared memory that is mapped, and a file with a position.
    int memory = MUST(memfd_create("in flight", 0));
    MUST(ftruncate(memory, PAGE));
    uint8_t *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(mapped != MAP_FAILED, "mmap: %s", strerror(errno));
    fill(mapped, PAGE, 3);
    put_one(packets[0], "memory", memory);
    close(memory);
    char name[64];
    snprintf(name, sizeof name, "in-flight-%d", getpid());
    int file = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));
    CHECK(write(file, "0123456789", 10) == 10, "write: %s", strerror(errno));
    MUST(lseek(file, 4, SEEK_SET));
    MUST(unlink(name));
    put_one(packets[0], "file", file);
    close(file);
    // Both ends of a pair at once; the end of another in whose queue descriptors wait as well.
    pair_of(SOCK_STREAM, back);
    put(datagrams[0], "both", 2, back);
    close(back[0]);
    close(back[1]);
    put_one(inner[0], "inner", kept);
    put_one(datagrams[0], "outer", inner[1]);
    close(inner[1]);
    // An end that is closed when the descriptor arrives.
    put_one(closed[0], "last", kept);
    close(closed[0]);
    // One in its own queue, and nowhere else.
    put_one(own[0], "itself", own[1]);
    // Credentials: before the receiver asked for them, after, and with a descriptor.
    put(named[0], "nobody", 0, NULL);
    set(named[1], SO_PASSCRED);
    put(named[0], "known", 0, NULL);
    put_one(named[0], "with", kept);
    // More than a buffer of the usual size holds, to be sent in many pieces.
    static char much[100000];
    memset(much, 'm', sizeof much);
    CHECK(write(crowded[0], much, sizeof much) == (ssize_t)sizeof much, "write: %s", strerror(errno));
    put_one(crowded[0], "end", kept);
    pid_t parent = getpid();
    // Memory that nobody has but the message.
    int more[2], lone = MUST(memfd_create("lone", MFD_ALLOW_SEALING));
    pair_of(SOCK_SEQPACKET, more);
    CHECK(pwrite(lone, "lone", 4, 5000) == 4, "write: %s", strerror(errno));
    MUST(fcntl(lone, F_ADD_SEALS, F_SEAL_WRITE));
    put_one(more[0], "memory", lone);
    close(lone);
    ready_and_wait();
    char content[5] = {0};
    lone = get_one(more[1], "memory");
    CHECK(pread(lone, content, 4, 5000) == 4 && !strcmp(content, "lone"), "memory: saw '%s' (%s)", content, strerror(errno));
    REFUSED(write(lone, "x", 1), EPERM);

    get(stream[0], 64, "reply", 0);
    get(stream[1], 3, "one", 0);
    int received = get(stream[1], 64, "two", 1).fds[0];
    passes_bytes(pipe_ends[1], received);
    struct got three = get(stream[1], 64, "three", 3);
    CHECK(count_of(three.fds[0]) == 7, "expected 7 in the eventfd");
    CHECK(write(three.fds[2], &(uint64_t){5}, 8) == 8 && count_of(kept) == 5, "expected one eventfd");
    CHECK(count_of(three.fds[1]) == 1 && fcntl(three.fds[1], F_GETFL) & O_NONBLOCK, "expected a semaphore");
    get(stream[1], 64, "four", 0);
    get(stream[1], 64, "", 0);
    int mapped_too = get_one(packets[1], "memory");
    CHECK(pwrite(mapped_too, "shared", 6, 0) == 6 && !memcmp(mapped, "shared", 6), "expected the memory that is mapped");
    CHECK_FILLED_FROM(mapped + 6, PAGE - 6, 3, 6);
    char text[7] = "";
    int deleted = get_one(packets[1], "file");
    CHECK(read(deleted, text, 6) == 6 && !strcmp(text, "456789"), "file: saw %s", text);
    struct got both = get(datagrams[1], 64, "both", 2);
    passes_bytes(both.fds[0], both.fds[1]);
    int outer = get_one(datagrams[1], "outer");
    int within = get_one(outer, "inner");
    put(inner[0], "more", 0, NULL);
    get(outer, 64, "more", 0);
    CHECK(write(within, &(uint64_t){9}, 8) == 8 && count_of(kept) == 9, "expected the same eventfd");
    within = get_one(closed[1], "last");
    CHECK(write(within, &(uint64_t){2}, 8) == 8 && count_of(kept) == 2, "expected the same eventfd");
    get(closed[1], 64, "", 0);
    int itself = get_one(own[1], "itself");
    put(own[0], "again", 0, NULL);
    get(itself, 64, "again", 0);
    expect_no_sender(get(named[1], 64, "nobody", 0));
    expect_sender(get(named[1], 64, "known", 0), parent, getuid());
    expect_sender(get(named[1], 64, "with", 1), parent, getuid());
    for (size_t at = 0; at < sizeof much;) at += (size_t)MUST(read(crowded[1], much, sizeof much - at));
    get_one(crowded[1], "end");
    pass();
}
