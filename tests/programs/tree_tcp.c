// TCP connections of a tree that go on in a clone which takes its place: of the parent, of a child, and
// of both, with bytes that wait in it.
#include "inet.h"
#include "tree.h"
#include <sys/ioctl.h>

enum { OF_PARENT, OF_CHILD, OF_BOTH, COUNT };

static int connections[COUNT];

// A process of its own, that nothing but the connections leads to: sends back what comes.
static void peers(int listener) {
    if (fork()) _exit(0);
    setsid();
    int null = open("/dev/null", O_RDWR), fds[COUNT];
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    alarm(100);
    for (int i = 0; i < COUNT; i++) fds[i] = accept(listener, NULL, NULL);
    struct pollfd ready[COUNT];
    for (int open = COUNT; open;) {
        open = 0;
        for (int i = 0; i < COUNT; i++) ready[i] = (struct pollfd){fds[i], POLLIN, 0};
        poll(ready, COUNT, -1);
        for (int i = 0; i < COUNT; i++) {
            char bytes[64];
            if (fds[i] >= 0 && ready[i].revents) {
                ssize_t got = recv(fds[i], bytes, sizeof bytes, 0);
                if (got > 0 && send(fds[i], bytes, (size_t)got, MSG_NOSIGNAL) == got) open++;
                else close(fds[i]), fds[i] = -1;
            } else open += fds[i] >= 0;
        }
    }
    _exit(0);
}

static void says(int fd, const char *text) {
    CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text), "send: %s", strerror(errno));
}

static void hears(int fd, const char *expected) {
    char got[64] = {0};
    for (size_t bytes = 0; bytes < strlen(expected);) {
        ssize_t more = recv(fd, got + bytes, strlen(expected) - bytes, 0);
        CHECK(more > 0, "expected '%s', saw '%s' and then %zd (%s)", expected, got, more, strerror(errno));
        bytes += (size_t)more;
    }
    CHECK(!strcmp(got, expected), "expected '%s', saw '%s'", expected, got);
}

static void other(void) {
    close(connections[OF_PARENT]);
    in_place();
    hears(connections[OF_BOTH], "for the child ");
    says(connections[OF_CHILD], "child");
    hears(connections[OF_CHILD], "child");
}

int main(void) {
    union address at = v4("127.0.0.1", own_port());
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    bind_to(listener, &at);
    MUST(listen(listener, COUNT));
    for (int i = 0; i < COUNT; i++) connections[i] = connected_to(&at);
    // The listener goes to the peers, who are not to have the connections.
    pid_t peer = MUST(fork());
    if (peer == 0) {
        for (int i = 0; i < COUNT; i++) close(connections[i]);
        peers(listener);
    }
    reap(peer);
    close(listener);
    struct child one = child(other);
    close(connections[OF_CHILD]);
    says(connections[OF_BOTH], "for the child and the parent");
    // It has come back, and waits.
    int waiting = 0;
    while (waiting < 28) MUST(ioctl(connections[OF_BOTH], FIONREAD, &waiting));
    ready_and_wait();
    tell_and_reap(one);
    hears(connections[OF_BOTH], "and the parent");
    for (int *fd = (int[]){connections[OF_PARENT], connections[OF_BOTH], -1}; *fd >= 0; fd++) {
        says(*fd, "again");
        hears(*fd, "again");
    }
    pass();
}
