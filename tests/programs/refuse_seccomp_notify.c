// A supervisor answers for calls; who would in a clone?
#include "filters.h"

int main(void) {
    const struct rule asks[] = {{SYS_getppid, SECCOMP_RET_USER_NOTIF}};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    int listener = MUST(install(asks, 1, 0, SECCOMP_FILTER_FLAG_NEW_LISTENER));
    close(listener);
    ready_and_wait();
    REFUSED(syscall(SYS_getppid), ENOSYS);
    pass();
}
