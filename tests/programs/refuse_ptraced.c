// A process that is traced already: a child traces us, so only its tracer may stop us.
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

// Double fork: the tracer is not our child, so that it is the tracing that gets refused.
static pid_t start_tracer(int told[2]) {
    pid_t subject = getpid(), middle = MUST(fork());
    if (!middle) {
        pid_t tracer = MUST(fork());
        if (tracer) _exit(0);
        for (int fd = 0; fd < 3; fd++) close(fd);
        int seized = ptrace(PTRACE_SEIZE, subject, 0, 0);
        pid_t self = seized ? -1 : getpid();
        if (write(told[1], &self, sizeof self) != sizeof self) _exit(1);
        close(told[0]);
        close(told[1]);
        while (!kill(subject, 0)) {
            int status;
            pid_t stopped = waitpid(subject, &status, __WALL);
            if (stopped < 0 || WIFEXITED(status) || WIFSIGNALED(status)) break;
            ptrace(PTRACE_CONT, subject, 0, status >> 16 ? 0 : WSTOPSIG(status));
        }
        _exit(0);
    }
    reap(middle);
    pid_t tracer = -1;
    CHECK(read(told[0], &tracer, sizeof tracer) == sizeof tracer, "pipe: %s", strerror(errno));
    return tracer;
}

int main(void) {
    int told[2];
    MUST(pipe(told));
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t tracer = start_tracer(told);
    CHECK(tracer > 0, "PTRACE_SEIZE: expected to work");
    close(told[0]);
    close(told[1]);
    ready_and_wait();
    MUST(kill(tracer, SIGKILL));
    pass();
}
