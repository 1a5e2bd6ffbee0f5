// The first filter forbids the call that installs filters, so the second came by prctl.
#include "filters.h"

int main(void) {
    const struct rule first[] = {{SYS_seccomp, SECCOMP_RET_KILL_PROCESS}};
    const struct rule second[] = {{SYS_getppid, ERRNO(EXDEV)}};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(install(first, 1, 0, 0));
    MUST(install(second, 1, 1, 0));
    ready_and_wait();
    REFUSED(syscall(SYS_getppid), EXDEV);
    pass();
}
