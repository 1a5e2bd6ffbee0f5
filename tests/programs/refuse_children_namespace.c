// Children that are to be in a PID namespace of their own; there are none yet.
#include "check.h"
#include <sched.h>

int main(void) {
    if (unshare(CLONE_NEWPID)) {
        note("UNAVAILABLE unshare: %s", strerror(errno));
        pass();
    }
    ready_and_wait();
    pid_t child = MUST(fork());
    if (!child) _exit(getpid() == 1 ? 0 : 1);
    reap(child);
    pass();
}
