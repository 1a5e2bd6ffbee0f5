// System calls that the kernel hands back to the program as signals.
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <ucontext.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static volatile char selector; // 0 lets calls pass, 1 hands them over
static volatile int handed;

static void hand(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    selector = 0;
    handed++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4711;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = hand, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector)) {
        note("UNAVAILABLE syscall user dispatch: %s", strerror(errno));
        pass();
    }
    ready_and_wait();
    selector = 1;
    long answer = syscall(SYS_getppid);
    CHECK(answer == 4711 && handed == 1, "expected the call to be handed over, saw %ld", answer);
    pass();
}
