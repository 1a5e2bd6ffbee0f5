// signalfd: the mask, changed once; signals that wait are read from it; blocked ones only.
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

static sigset_t set_of(int first, int second) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, first);
    if (second) sigaddset(&set, second);
    return set;
}

static void expect(int fd, int number, int value) {
    struct signalfd_siginfo told = {0};
    ssize_t got = read(fd, &told, sizeof told);
    CHECK(got == sizeof told && (int)told.ssi_signo == number && told.ssi_int == value,
          "fd %d: expected signal %d with %d, saw %zd bytes, signal %u with %d", fd, number, value, got,
          told.ssi_signo, told.ssi_int);
}

static void expect_none(int fd) {
    struct signalfd_siginfo told;
    struct pollfd ready = {fd, POLLIN, 0};
    CHECK(poll(&ready, 1, 0) == 0, "fd %d: expected nothing to read", fd);
    REFUSED(read(fd, &told, sizeof told), EAGAIN);
}

int main(void) {
    sigset_t blocked = set_of(SIGUSR1, SIGUSR2), first = set_of(SIGUSR1, 0), second = set_of(SIGUSR2, SIGRTMIN + 3);
    sigaddset(&blocked, SIGRTMIN + 3);
    MUST(sigprocmask(SIG_BLOCK, &blocked, NULL));
    int one = MUST(signalfd(-1, &blocked, SFD_NONBLOCK | SFD_CLOEXEC));
    int other = MUST(signalfd(-1, &second, SFD_NONBLOCK));
    MUST(signalfd(one, &first, 0)); // the mask that counts
    MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 4711}));
    MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 4712}));
    ready_and_wait();
    expect_none(one);
    expect(other, SIGRTMIN + 3, 4711);
    expect(other, SIGRTMIN + 3, 4712);
    expect_none(other);
    MUST(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 1}));
    expect_none(other);
    expect(one, SIGUSR1, 1);
    MUST(sigqueue(getpid(), SIGUSR2, (union sigval){.sival_int = 2}));
    expect_none(one);
    expect(other, SIGUSR2, 2);
    expect_none(other);
    CHECK(fcntl(one, F_GETFD) == FD_CLOEXEC && fcntl(other, F_GETFD) == 0, "expected FD_CLOEXEC on the first only");
    pass();
}
