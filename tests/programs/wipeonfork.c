// MADV_WIPEONFORK, set before and after: the child reads zeros, the parent keeps its bytes.
#include "check.h"

int main(void) {
    uint8_t *before = filled(16 * PAGE, 1);
    uint8_t *after = filled(16 * PAGE, 2);
    uint8_t *kept = filled(16 * PAGE, 3);
    MUST(raw_madvise(before, 16 * PAGE, MADV_WIPEONFORK));
    ready_and_wait();
    CHECK_FILLED(before, 16 * PAGE, 1);
    MUST(raw_madvise(after, 8 * PAGE, MADV_WIPEONFORK));
    MUST(raw_madvise(kept, 16 * PAGE, MADV_WIPEONFORK));
    MUST(raw_madvise(kept, 16 * PAGE, MADV_KEEPONFORK));
    pid_t child = MUST(fork());
    if (!child) {
        CHECK_ZEROS(before, 16 * PAGE);
        CHECK_ZEROS(after, 8 * PAGE);
        CHECK_FILLED_FROM(after + 8 * PAGE, 8 * PAGE, 2, 8 * PAGE);
        CHECK_FILLED(kept, 16 * PAGE, 3);
        _exit(0);
    }
    reap(child);
    CHECK_FILLED(before, 16 * PAGE, 1);
    CHECK_FILLED(after, 16 * PAGE, 2);
    CHECK_FILLED(kept, 16 * PAGE, 3);
    pass();
}
