// A living child is a second process.
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>

int main(void) {
    pid_t parent = getpid(), child = MUST(fork());
    if (!child) {
        // Our stdin and stdout would keep the driver's pipes open.
        for (int fd = 0; fd < 3; fd++) close(fd);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) pause();
        _exit(0);
    }
    ready_and_wait();
    MUST(kill(child, SIGKILL));
    MUST(waitpid(child, NULL, 0));
    pass();
}
