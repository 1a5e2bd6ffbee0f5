// A process that has given up root stays without it: whoever stands above it shares no memory with
// it and cannot be reached, and a user namespace of its own can be entered.
#include "check.h"
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#define USER 1000

static void try_to_reach(pid_t above) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", above);
    REFUSED(open(path, O_RDWR), EACCES);
    REFUSED(ptrace(PTRACE_SEIZE, above, 0, 0), EPERM);
    long word = 0;
    struct iovec here = {&word, sizeof word}, there = {&word, sizeof word};
    REFUSED(process_vm_writev(above, &here, 1, &there, 1, 0), EPERM);
}

int main(void) {
    if (geteuid()) {
        ready_and_wait();
        note("not root: nothing to give up");
        pass();
    }
    ready_and_wait();
    pid_t above = getppid();
    if (above) {
        long order = MUST(syscall(SYS_kcmp, getpid(), above, KCMP_VM, 0, 0));
        CHECK(order != 0, "expected memory apart from that of process %d", above);
    }
    MUST(setresgid(USER, USER, USER));
    MUST(setresuid(USER, USER, USER));
    MUST(prctl(PR_SET_DUMPABLE, 1));
    if (above) try_to_reach(above);
    MUST(unshare(CLONE_NEWUSER));
    pass();
}
