// mremap to a chosen address: bytes move, the old place is gone, what was there is replaced.
#include "fault.h"

int main(void) {
    uint8_t *from = filled(16 * PAGE, 1);
    uint8_t *to = filled(16 * PAGE, 2);
    uint8_t *growing = filled(4 * PAGE, 3);
    uint8_t *room = filled(16 * PAGE, 4);
    catch_faults();
    ready_and_wait();
    int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    uint8_t *at = raw_mremap(from + 4 * PAGE, 8 * PAGE, 8 * PAGE, fixed, to);
    CHECK(at == to, "mremap: expected %p, saw %p (%s)", to, at, strerror(errno));
    CHECK_FILLED_FROM(to, 8 * PAGE, 1, 4 * PAGE);
    CHECK_FILLED_FROM(to + 8 * PAGE, 8 * PAGE, 2, 8 * PAGE);
    CHECK_FILLED(from, 4 * PAGE, 1);
    CHECK_FILLED_FROM(from + 12 * PAGE, 4 * PAGE, 1, 12 * PAGE);
    CHECK(fault_of_read(from + 4 * PAGE) == SIGSEGV, "the old place: expected SIGSEGV");
    DONTNEED(to, 4 * PAGE);
    CHECK_ZEROS(to, 4 * PAGE);
    at = raw_mremap(growing, 4 * PAGE, 16 * PAGE, fixed, room);
    CHECK(at == room, "growing mremap: expected %p, saw %p (%s)", room, at, strerror(errno));
    CHECK_FILLED(room, 4 * PAGE, 3);
    CHECK_ZEROS(room + 4 * PAGE, 12 * PAGE);
    pass();
}
