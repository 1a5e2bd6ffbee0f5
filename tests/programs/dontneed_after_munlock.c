// A lock that protects pages from MADV_DONTNEED can be taken off: then zeros are due.
#include "check.h"

static void unlocked_range_gives_zeros(uint8_t *at, unsigned seed) {
    CHECK_FILLED(at, 16 * PAGE, seed);
    MUST(syscall(SYS_munlock, at + 4 * PAGE, 4 * PAGE));
    DONTNEED(at + 4 * PAGE, 4 * PAGE);
    CHECK_FILLED(at, 4 * PAGE, seed);
    CHECK_ZEROS(at + 4 * PAGE, 4 * PAGE);
    CHECK_FILLED_FROM(at + 8 * PAGE, 8 * PAGE, seed, 8 * PAGE);
}

int main(void) {
    uint8_t *before = filled(16 * PAGE, 1);
    MUST(mlock(before, 16 * PAGE));
    uint8_t *after = filled(16 * PAGE, 2);
    uint8_t *all = filled(16 * PAGE, 3);
    ready_and_wait();
    unlocked_range_gives_zeros(before, 1);
    MUST(mlock(after, 16 * PAGE));
    unlocked_range_gives_zeros(after, 2);
    MUST(munlockall());
    DONTNEED(all, 16 * PAGE);
    CHECK_ZEROS(all, 16 * PAGE);
    DONTNEED(before, 16 * PAGE);
    CHECK_ZEROS(before, 16 * PAGE);
    pass();
}
