// New anonymous memory on the place of old memory is zero: unmapped first, or mapped over.
#include "check.h"

int main(void) {
    uint8_t *replaced = filled(16 * PAGE, 1);
    uint8_t *unmapped = filled(16 * PAGE, 2);
    uint8_t *hole = filled(16 * PAGE, 3);
    MUST(munmap(hole, 16 * PAGE));
    ready_and_wait();
    anonymous_at(replaced + 4 * PAGE, 4 * PAGE);
    CHECK_FILLED(replaced, 4 * PAGE, 1);
    CHECK_ZEROS(replaced + 4 * PAGE, 4 * PAGE);
    CHECK_FILLED_FROM(replaced + 8 * PAGE, 8 * PAGE, 1, 8 * PAGE);
    MUST(munmap(unmapped + 4 * PAGE, 8 * PAGE));
    anonymous_at(unmapped + 4 * PAGE, 8 * PAGE);
    CHECK_ZEROS(unmapped + 4 * PAGE, 8 * PAGE);
    uint8_t *there = mmap(hole, 16 * PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(there == hole, "a hole has to stay a hole: expected %p, saw %p (%s)", hole, there,
          strerror(errno));
    CHECK_ZEROS(hole, 16 * PAGE);
    pass();
}
