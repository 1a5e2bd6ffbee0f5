// MADV_FREE: each page is either still there or zero, and stays once it is written again.
#include "check.h"

static void old_or_zero(const uint8_t *page, size_t from) {
    if (page[0])
        CHECK_FILLED_FROM(page, PAGE, 1, from);
    else
        CHECK_ZEROS(page, PAGE);
}

int main(void) {
    uint8_t *memory = filled(32 * PAGE, 1);
    uint8_t *freed_before = filled(32 * PAGE, 1);
    MUST(raw_madvise(freed_before, 32 * PAGE, MADV_FREE));
    ready_and_wait();
    MUST(raw_madvise(memory + 8 * PAGE, 8 * PAGE, MADV_FREE));
    CHECK_FILLED(memory, 8 * PAGE, 1);
    CHECK_FILLED_FROM(memory + 16 * PAGE, 16 * PAGE, 1, 16 * PAGE);
    for (size_t page = 8; page < 16; page++) old_or_zero(memory + page * PAGE, page * PAGE);
    for (size_t page = 0; page < 32; page++) old_or_zero(freed_before + page * PAGE, page * PAGE);
    fill(memory + 8 * PAGE, 8 * PAGE, 2);
    CHECK_FILLED(memory + 8 * PAGE, 8 * PAGE, 2);
    DONTNEED(memory + 8 * PAGE, 8 * PAGE);
    CHECK_ZEROS(memory + 8 * PAGE, 8 * PAGE);
    pass();
}
