// Locked memory: MADV_DONTNEED is refused, MADV_DONTNEED_LOCKED gives zeros.
#include "check.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

int main(void) {
    uint8_t *locked = filled(32 * PAGE, 1);
    MUST(mlock(locked, 32 * PAGE));
    uint8_t *open = filled(32 * PAGE, 2);
    ready_and_wait();
    REFUSED(raw_madvise(locked, PAGE, MADV_DONTNEED), EINVAL);
    CHECK_FILLED(locked, 32 * PAGE, 1);
    MUST(raw_madvise(locked + 4 * PAGE, 4 * PAGE, MADV_DONTNEED_LOCKED));
    CHECK_ZEROS(locked + 4 * PAGE, 4 * PAGE);
    CHECK_FILLED_FROM(locked + 8 * PAGE, 24 * PAGE, 1, 8 * PAGE);
    // Memory that was never locked must not look locked to the clone, and takes both calls.
    DONTNEED(open, PAGE);
    MUST(raw_madvise(open + PAGE, PAGE, MADV_DONTNEED_LOCKED));
    CHECK_ZEROS(open, 2 * PAGE);
    CHECK_FILLED_FROM(open + 2 * PAGE, 30 * PAGE, 2, 2 * PAGE);
    MUST(mlock(open + 8 * PAGE, 4 * PAGE));
    REFUSED(raw_madvise(open + 8 * PAGE, PAGE, MADV_DONTNEED), EINVAL);
    MUST(raw_madvise(open + 8 * PAGE, PAGE, MADV_DONTNEED_LOCKED));
    CHECK_ZEROS(open + 8 * PAGE, PAGE);
    pass();
}
