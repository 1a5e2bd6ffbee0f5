// Patterns around every 2 MiB border, where the kernel changes from PMDs to pages.
#include "check.h"

#define BORDERS 4

static void check_border(const uint8_t *border, unsigned seed) {
    CHECK_ZEROS(border - 4 * PAGE, 2 * PAGE);
    CHECK_FILLED(border - 2 * PAGE, 4 * PAGE, seed);
    CHECK_ZEROS(border + 2 * PAGE, 2 * PAGE);
}

int main(void) {
    uint8_t *memory = anonymous((BORDERS + 2) * HUGE);
    uint8_t *aligned = (uint8_t *)(((uintptr_t)memory + HUGE - 1) & -HUGE);
    for (unsigned i = 1; i <= BORDERS; i++) fill(aligned + i * HUGE - 2 * PAGE, 4 * PAGE, i);
    uint8_t *whole = anonymous(4 * HUGE);
    uint8_t *block = (uint8_t *)(((uintptr_t)whole + HUGE - 1) & -HUGE);
    fill(block, 2 * HUGE, 9);
    ready_and_wait();
    for (unsigned i = 1; i <= BORDERS; i++) check_border(aligned + i * HUGE, i);
    block[HUGE] ^= 1; // one write into a block that is mapped as a whole
    block[HUGE] ^= 1;
    CHECK_FILLED(block, 2 * HUGE, 9);
    DONTNEED(block + HUGE - PAGE, 2 * PAGE);
    CHECK_FILLED(block, HUGE - PAGE, 9);
    CHECK_ZEROS(block + HUGE - PAGE, 2 * PAGE);
    CHECK_FILLED_FROM(block + HUGE + PAGE, HUGE - PAGE, 9, HUGE + PAGE);
    MUST(munmap(block + HUGE / 2, HUGE));
    CHECK_FILLED(block, HUGE / 2, 9);
    CHECK_FILLED_FROM(block + HUGE + HUGE / 2, HUGE / 2, 9, HUGE + HUGE / 2);
    pass();
}
