// A child that was stopped stays so, and its parent is not told of it again.
#include "tree.h"

static volatile sig_atomic_t told;

static void on_child(int signal) { told += signal == SIGCHLD; }

static volatile sig_atomic_t has_gone_on;

static void on_continue(int signal) { has_gone_on = signal; }

static void stopped(void) {
    struct sigaction action = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGCONT, &action, NULL));
    in_place();
    CHECK(has_gone_on == SIGCONT, "expected SIGCONT, saw %d", has_gone_on);
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
    int status;
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
    struct child sleeper = child(stopped), living = child(in_place);
    MUST(kill(sleeper.pid, SIGSTOP));
    CHECK(waitpid(sleeper.pid, &status, WUNTRACED) == sleeper.pid && WIFSTOPPED(status), "stop");
    MUST(sigaction(SIGCHLD, &action, NULL));
    ready_and_wait();
    CHECK(told == 0, "expected no SIGCHLD, saw %d", told);
    CHECK(state_of(sleeper.pid) == 'T', "expected a stopped child, saw %c", state_of(sleeper.pid));
    CHECK(waitpid(sleeper.pid, &status, WUNTRACED | WNOHANG) == 0, "its stop is told again");
    MUST(kill(sleeper.pid, SIGCONT));
    tell_and_reap(sleeper);
    tell_and_reap(living);
    CHECK(told >= 2, "expected SIGCHLD for each child, saw %d", told);
    pass();
}
