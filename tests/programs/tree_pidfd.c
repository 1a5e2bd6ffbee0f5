// Handles of a child, of oneself and of one's parent, and of a child that has ended.
#include "tree.h"
#include <poll.h>

static int handle(pid_t pid) { return MUST(syscall(SYS_pidfd_open, pid, 0)); }

static int has_ended(int fd) {
    struct pollfd of = {.fd = fd, .events = POLLIN};
    return MUST(poll(&of, 1, 0)) == 1;
}

static pid_t refers_to(int fd) {
    char path[64], text[512] = "", *at;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    int info = MUST(open(path, O_RDONLY));
    MUST(read(info, text, sizeof text - 1));
    close(info);
    CHECK((at = strstr(text, "Pid:")), "no Pid in %s", text);
    return atoi(at + 4);
}

static void knows_parent(void) {
    int parent = handle(getppid()), own = handle(getpid());
    in_place();
    CHECK(refers_to(parent) == getppid(), "expected %d, saw %d", getppid(), refers_to(parent));
    CHECK(refers_to(own) == getpid(), "expected %d, saw %d", getpid(), refers_to(own));
}

int main(void) {
    struct child plain = child(in_place), knowing = child(knows_parent);
    int of_child = handle(plain.pid);
    pid_t gone = MUST(fork());
    if (gone == 0) _exit(5);
    siginfo_t info;
    MUST(waitid(P_PID, gone, &info, WEXITED | WNOWAIT));
    int of_gone = handle(gone);
    ready_and_wait();
    CHECK(refers_to(of_child) == plain.pid, "expected %d, saw %d", plain.pid, refers_to(of_child));
    CHECK(!has_ended(of_child) && has_ended(of_gone), "which have ended");
    tell(knowing);
    reap(knowing.pid);
    tell(plain);
    memset(&info, 0, sizeof info);
    MUST(waitid(P_PIDFD, of_child, &info, WEXITED));
    CHECK(info.si_pid == plain.pid && info.si_status == 0, "expected the child, saw %d", info.si_pid);
    memset(&info, 0, sizeof info);
    MUST(waitid(P_PIDFD, of_gone, &info, WEXITED));
    CHECK(info.si_pid == gone && info.si_status == 5, "expected 5, saw %d", info.si_status);
    pass();
}
