// An IPC namespace of the process's own: its clones have one each, too.
#include "sysv.h"
#include <sched.h>
#include <sys/prctl.h>

int main(void) {
    if (unshare(CLONE_NEWIPC)) {
        note("UNAVAILABLE unshare: %s", strerror(errno));
        pass();
    }
    int id = make_segment(0x1234, PAGE, 0600);
    CHECK(id == 0, "expected the first segment of a namespace, saw id %d", id);
    uint8_t *at = attach(id, NULL, 0);
    fill(at, PAGE, 1);
    if (getenv("COMPANY")) {
        pid_t child = MUST(fork());
        if (!child) {
            MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
            MUST(shmdt(at));
            pause();
        }
    }
    ready_and_wait();
    CHECK_FILLED(at, PAGE, 1);
    MUST(shmdt(at));
    MUST(shmctl(id, IPC_RMID, NULL));
    CHECK(shmget(0x1234, 0, 0) == -1 && errno == ENOENT, "expected no segment, saw errno %d", errno);
    pass();
}
