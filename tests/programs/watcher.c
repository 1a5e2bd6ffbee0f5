// Looks at its memory all the time, and says how often when it is asked to end. Commands, one byte each:
//   v  go on looking
//   n  take new memory, and go on
//   another: end
#include "check.h"
#include <poll.h>

#define BYTES (6 * HUGE)

int main(void) {
    uint8_t *memory = filled(BYTES, 11);
    char byte = ready_and_wait();
    unsigned long rounds = 0;
    uint8_t *added = NULL;
    for (; byte == 'v' || byte == 'n'; rounds++) {
        if (byte == 'n') {
            added = filled(BYTES / 2, 12);
            note("has new memory");
            byte = 'v';
        }
        // Dropped from the page tables now and then: the next look asks the pool again.
        CHECK_FILLED(memory, BYTES, 11);
        if (rounds % 4 == 3) MUST(raw_madvise(memory, BYTES, MADV_PAGEOUT));
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (poll(&input, 1, 0) == 1) MUST(read(0, &byte, 1));
    }
    CHECK_FILLED(memory, BYTES, 11);
    if (added != NULL) CHECK_FILLED(added, BYTES / 2, 12);
    note("%lu rounds", rounds);
    pass();
}
