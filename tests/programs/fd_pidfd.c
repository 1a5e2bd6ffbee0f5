// A process's handle on itself.
#include "check.h"
#include <signal.h>
#include <poll.h>

int main(void) {
    int handle = MUST(syscall(SYS_pidfd_open, getpid(), 0)), waiting = MUST(syscall(SYS_pidfd_open, getpid(), O_NONBLOCK));
    sigset_t set = {0};
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    ready_and_wait();
    CHECK(fcntl(waiting, F_GETFL) & O_NONBLOCK, "expected O_NONBLOCK");
    int fds[] = {handle, waiting};
    for (int i = 0; i < 2; i++) {
        MUST(syscall(SYS_pidfd_send_signal, fds[i], SIGUSR1, NULL, 0));
        struct timespec second = {1, 0};
        siginfo_t info;
        CHECK(sigtimedwait(&set, &info, &second) == SIGUSR1, "expected the signal");
        CHECK(info.si_pid == getpid(), "expected it from %d, saw %d", getpid(), info.si_pid);
        struct pollfd alive = {.fd = fds[i], .events = POLLIN};
        CHECK(poll(&alive, 1, 0) == 0, "expected this process to live");
    }
    pass();
}
