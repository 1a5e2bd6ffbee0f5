// A child that has exited is there until its status is taken.
#include "check.h"

int main(void) {
    pid_t child = MUST(fork());
    if (!child) _exit(3);
    siginfo_t info;
    MUST(waitid(P_PID, child, &info, WEXITED | WNOWAIT));
    ready_and_wait();
    int status = 0;
    MUST(waitpid(child, &status, 0));
    CHECK(WEXITSTATUS(status) == 3, "expected status 3, saw %#x", status);
    pass();
}
