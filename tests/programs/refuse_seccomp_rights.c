// A filter that took rights which are gone cannot be installed again.
#include "filters.h"

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE filters without no_new_privs");
        ready_and_wait();
        pass();
    }
    const struct rule rules[] = {{SYS_getppid, ERRNO(EXDEV)}};
    MUST(install(rules, 1, 0, 0));
    MUST(setresuid(1000, 1000, 1000));
    ready_and_wait();
    REFUSED(syscall(SYS_getppid), EXDEV);
    pass();
}
