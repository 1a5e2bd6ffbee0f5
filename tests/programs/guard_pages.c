// Guards around memory: PROT_NONE neighbours, and the kernel's own guard regions (6.13).
#include "fault.h"

#define MADV_GUARD_INSTALL_ 102
#define MADV_GUARD_REMOVE_ 103

static void expect_fault(const uint8_t *at, const char *what) {
    int seen = fault_of_read(at);
    CHECK(seen == SIGSEGV, "%s: expected SIGSEGV, saw signal %d", what, seen);
}

int main(void) {
    uint8_t *fenced = filled(10 * PAGE, 1);
    MUST(mprotect(fenced, PAGE, PROT_NONE));
    MUST(mprotect(fenced + 9 * PAGE, PAGE, PROT_NONE));
    uint8_t *before = filled(16 * PAGE, 2);
    int guards = raw_madvise(before + 4 * PAGE, 4 * PAGE, MADV_GUARD_INSTALL_) == 0;
    uint8_t *after = filled(16 * PAGE, 3);
    catch_faults();
    ready_and_wait();
    expect_fault(fenced, "PROT_NONE below");
    expect_fault(fenced + 9 * PAGE, "PROT_NONE above");
    CHECK_FILLED_FROM(fenced + PAGE, 8 * PAGE, 1, PAGE);
    CHECK_FILLED(before, 4 * PAGE, 2);
    CHECK_FILLED_FROM(before + 8 * PAGE, 8 * PAGE, 2, 8 * PAGE);
    if (!guards) {
        note("this kernel has no guard regions");
        pass();
    }
    expect_fault(before + 4 * PAGE, "guard set before");
    expect_fault(before + 7 * PAGE, "guard set before");
    MUST(raw_madvise(before + 4 * PAGE, 4 * PAGE, MADV_GUARD_REMOVE_));
    CHECK_ZEROS(before + 4 * PAGE, 4 * PAGE);
    MUST(raw_madvise(after + 4 * PAGE, 4 * PAGE, MADV_GUARD_INSTALL_));
    expect_fault(after + 5 * PAGE, "guard set after");
    MUST(raw_madvise(after + 4 * PAGE, 4 * PAGE, MADV_GUARD_REMOVE_));
    CHECK_ZEROS(after + 4 * PAGE, 4 * PAGE);
    CHECK_FILLED(after, 4 * PAGE, 3);
    CHECK_FILLED_FROM(after + 8 * PAGE, 8 * PAGE, 3, 8 * PAGE);
    pass();
}
