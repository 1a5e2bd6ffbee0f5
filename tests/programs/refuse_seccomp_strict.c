// Strict mode cannot be entered where there is a filter already.
#include "filters.h"

int main(void) {
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    ready_and_wait();
    if (write(1, "PASS\n", 5) == 5) syscall(SYS_exit, 0);
}
