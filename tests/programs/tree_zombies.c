// Children that have ended and were not waited for keep their statuses, and what was told of them
// is not told again.
#include "tree.h"

static volatile sig_atomic_t told;

static void on_child(int signal) { told += signal == SIGCHLD; }

static pid_t ended(int code, int by_signal, int exit_signal) {
    pid_t pid = MUST(syscall(SYS_clone, exit_signal, 0, 0, 0, 0));
    if (pid == 0) {
        if (by_signal) raise(by_signal);
        _exit(code);
    }
    siginfo_t info;
    MUST(waitid(P_PID, pid, &info, WEXITED | WNOWAIT | __WALL));
    return pid;
}

static void expect(pid_t pid, int code, int by_signal) {
    int status = 0;
    pid_t got;
    do got = waitpid(pid, &status, __WALL);
    while (got < 0 && errno == EINTR);
    CHECK(got == pid, "waitpid of %d: saw %d (%s)", pid, got, strerror(errno));
    if (by_signal)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == by_signal, "expected signal %d, saw %#x",
              by_signal, status);
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code, "expected exit %d, saw %#x", code,
              status);
}

static char state_of(pid_t pid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = MUST(open(path, O_RDONLY));
    MUST(read(fd, text, sizeof text - 1));
    close(fd);
    return strrchr(text, ')')[2];
}

int main(void) {
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
    struct child living = child(in_place);
    pid_t plain = ended(7, 0, SIGCHLD), killed = ended(0, SIGKILL, SIGCHLD);
    pid_t silent = ended(9, 0, 0), other = 0;
    sigset_t usr1;
    sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &usr1, NULL));
    other = ended(11, 0, SIGUSR1);
    // Its signal was taken: nothing waits when the checkpoint comes.
    siginfo_t info;
    CHECK(sigwaitinfo(&usr1, &info) == SIGUSR1 && info.si_pid == other, "sigwaitinfo");
    MUST(sigaction(SIGCHLD, &action, NULL));
    ready_and_wait();
    CHECK(told == 0, "expected no SIGCHLD, saw %d", told);
    CHECK(state_of(plain) == 'Z', "expected an ended child, saw %c", state_of(plain));
    sigset_t pending;
    MUST(sigpending(&pending));
    CHECK(!sigismember(&pending, SIGUSR1) && !sigismember(&pending, SIGCHLD), "a signal waits");
    expect(plain, 7, 0);
    expect(killed, 0, SIGKILL);
    expect(silent, 9, 0);
    expect(other, 11, 0);
    CHECK(told == 0, "expected no SIGCHLD yet, saw %d", told);
    tell_and_reap(living);
    CHECK(told == 1, "expected SIGCHLD for one child, saw %d", told);
    REFUSED(waitpid(-1, NULL, WNOHANG | __WALL), ECHILD);
    pass();
}
