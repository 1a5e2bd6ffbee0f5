// Sealed memory (6.10) stays sealed: what it refused before, it refuses after.
#include "check.h"

#define SYS_MSEAL 462

int main(void) {
    uint8_t *sealed = filled(8 * PAGE, 1);
    MUST(mprotect(sealed, 8 * PAGE, PROT_READ));
    int there = syscall(SYS_MSEAL, sealed, 8 * PAGE, 0) == 0;
    ready_and_wait();
    CHECK_FILLED(sealed, 8 * PAGE, 1);
    if (!there) {
        note("this kernel has no mseal");
        pass();
    }
    REFUSED(munmap(sealed, 8 * PAGE), EPERM);
    REFUSED(mprotect(sealed, PAGE, PROT_READ | PROT_WRITE), EPERM);
    REFUSED(raw_madvise(sealed, PAGE, MADV_DONTNEED), EPERM);
    CHECK_FILLED(sealed, 8 * PAGE, 1);
    pass();
}
