// A child that was stopped, which its parent has yet to wait for.
#include "tree.h"

int main(void) {
    int status;
    struct child first = child(in_place), second = child(in_place);
    MUST(kill(first.pid, SIGSTOP));
    MUST(kill(second.pid, SIGSTOP));
    siginfo_t info;
    MUST(waitid(P_PID, first.pid, &info, WSTOPPED | WNOWAIT));
    CHECK(waitpid(second.pid, &status, WUNTRACED) == second.pid && WIFSTOPPED(status), "stop");
    ready_and_wait();
    CHECK(waitpid(second.pid, &status, WUNTRACED | WNOHANG) == 0, "a stop is reported twice");
    CHECK(waitpid(first.pid, &status, WUNTRACED | WNOHANG) == first.pid && WIFSTOPPED(status), "a stop is lost");
    CHECK(waitpid(first.pid, &status, WUNTRACED | WNOHANG) == 0, "a stop is reported twice");
    MUST(kill(first.pid, SIGCONT));
    MUST(kill(second.pid, SIGCONT));
    tell_and_reap(first);
    tell_and_reap(second);
    pass();
}
