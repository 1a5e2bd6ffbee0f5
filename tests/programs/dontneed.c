// MADV_DONTNEED on anonymous memory gives zeros, never the bytes of the checkpoint.
#include "check.h"

static void partial_ranges(uint8_t *a, unsigned seed) {
    DONTNEED(a + 3 * PAGE, 4 * PAGE);
    CHECK_FILLED(a, 3 * PAGE, seed);
    CHECK_ZEROS(a + 3 * PAGE, 4 * PAGE);
    CHECK_FILLED_FROM(a + 7 * PAGE, 57 * PAGE, seed, 7 * PAGE);
    DONTNEED(a + 10 * PAGE, PAGE + 1); // the length is rounded up
    CHECK_ZEROS(a + 10 * PAGE, 2 * PAGE);
    CHECK_FILLED_FROM(a + 12 * PAGE, 52 * PAGE, seed, 12 * PAGE);
    REFUSED(raw_madvise(a + 1, PAGE, MADV_DONTNEED), EINVAL);
    DONTNEED(a + 20 * PAGE, 0);
    CHECK_FILLED_FROM(a + 20 * PAGE, PAGE, seed, 20 * PAGE);
}

static void written_by_the_clone(uint8_t *a) {
    fill(a + 20 * PAGE, PAGE, 9);
    DONTNEED(a + 20 * PAGE, PAGE);
    CHECK_ZEROS(a + 20 * PAGE, PAGE);
    fill(a + 20 * PAGE, PAGE, 10);
    CHECK_FILLED(a + 20 * PAGE, PAGE, 10);
    DONTNEED(a, 64 * PAGE);
    DONTNEED(a, 64 * PAGE);
    CHECK_ZEROS(a, 64 * PAGE);
}

static void over_two_areas(uint8_t *b) {
    DONTNEED(b + 15 * PAGE, 2 * PAGE);
    CHECK_FILLED(b, 15 * PAGE, 2);
    CHECK_ZEROS(b + 15 * PAGE, 2 * PAGE);
    CHECK_FILLED_FROM(b + 17 * PAGE, 15 * PAGE, 2, 17 * PAGE);
}

static void over_old_and_new(uint8_t *c) {
    anonymous_at(c + 8 * PAGE, 8 * PAGE);
    fill(c + 8 * PAGE, 8 * PAGE, 4);
    DONTNEED(c + 6 * PAGE, 4 * PAGE);
    CHECK_FILLED(c, 6 * PAGE, 3);
    CHECK_ZEROS(c + 6 * PAGE, 4 * PAGE);
    CHECK_FILLED_FROM(c + 10 * PAGE, 6 * PAGE, 4, 2 * PAGE);
}

static void over_a_hole(uint8_t *d) {
    REFUSED(raw_madvise(d, 6 * PAGE, MADV_DONTNEED), ENOMEM);
    CHECK_ZEROS(d, 2 * PAGE);
    CHECK_ZEROS(d + 4 * PAGE, 2 * PAGE);
    CHECK_FILLED_FROM(d + 6 * PAGE, 2 * PAGE, 5, 6 * PAGE);
}

int main(void) {
    uint8_t *a = filled(64 * PAGE, 1);
    uint8_t *b = filled(32 * PAGE, 2);
    MUST(mprotect(b + 16 * PAGE, 16 * PAGE, PROT_READ));
    uint8_t *c = filled(16 * PAGE, 3);
    uint8_t *d = filled(8 * PAGE, 5);
    uint8_t *large = filled(5 * MIB, 6);
    // Last: nothing else comes to lie in the holes.
    MUST(munmap(c + 8 * PAGE, 8 * PAGE));
    MUST(munmap(d + 2 * PAGE, 2 * PAGE));
    ready_and_wait();
    partial_ranges(a, 1);
    written_by_the_clone(a);
    over_two_areas(b);
    over_old_and_new(c);
    over_a_hole(d);
    DONTNEED(large + PAGE, 4 * MIB);
    CHECK_FILLED(large, PAGE, 6);
    CHECK_ZEROS(large + PAGE, 4 * MIB);
    CHECK_FILLED_FROM(large + PAGE + 4 * MIB, MIB - PAGE, 6, PAGE + 4 * MIB);
    pass();
}
