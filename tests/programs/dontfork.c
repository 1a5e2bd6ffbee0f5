// MADV_DONTFORK memory is not there in a child, whenever it was set.
#include "fault.h"

int main(void) {
    uint8_t *before = filled(8 * PAGE, 1);
    uint8_t *after = filled(8 * PAGE, 2);
    MUST(raw_madvise(before, 8 * PAGE, MADV_DONTFORK));
    catch_faults();
    ready_and_wait();
    MUST(raw_madvise(after + 4 * PAGE, 4 * PAGE, MADV_DONTFORK));
    pid_t child = MUST(fork());
    if (!child) {
        CHECK(fault_of_read(before) == SIGSEGV, "set before: expected SIGSEGV, saw memory");
        CHECK(fault_of_read(after + 4 * PAGE) == SIGSEGV, "set after: expected SIGSEGV, saw memory");
        CHECK_FILLED(after, 4 * PAGE, 2);
        _exit(0);
    }
    reap(child);
    CHECK_FILLED(before, 8 * PAGE, 1);
    CHECK_FILLED(after, 8 * PAGE, 2);
    pass();
}
