// Children that are checkpointed with their parent: each takes its place, waits for a word of the
// parent's, verifies what it has, and ends with status 0.
#ifndef FARFORK_TREE_H
#define FARFORK_TREE_H

#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

static int to_parent = -1;

struct child {
    pid_t pid;
    int socket;
};

// In a child: the parent's `child` returns, and this returns when the parent calls `tell`.
static inline void in_place(void) {
    char byte = 0;
    CHECK(write(to_parent, "x", 1) == 1, "write to the parent: %s", strerror(errno));
    ssize_t got = read(to_parent, &byte, 1);
    CHECK(got == 1 && byte == 'g', "expected a word of the parent's, saw %zd (%s)", got, strerror(errno));
}

// Forks a child that runs `run`, and waits until that calls `in_place`.
static inline struct child child(void (*run)(void)) {
    int ends[2];
    char byte;
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    struct child made = {.pid = MUST(fork()), .socket = ends[0]};
    if (made.pid == 0) {
        MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
        close(ends[0]);
        to_parent = ends[1];
        run();
        _exit(0);
    }
    close(ends[1]);
    CHECK(read(made.socket, &byte, 1) == 1, "a child did not come to its place");
    return made;
}

static inline void tell(struct child child) {
    CHECK(write(child.socket, "g", 1) == 1, "write to child %d: %s", child.pid, strerror(errno));
}

static inline void tell_and_reap(struct child child) {
    tell(child);
    reap(child.pid);
}

// Whether two descriptors, each of a process, are one open file description.
static inline int is_one_file(pid_t left, int left_fd, pid_t right, int right_fd) {
    return MUST(syscall(SYS_kcmp, left, right, 0 /* KCMP_FILE */, left_fd, right_fd)) == 0;
}

#endif
