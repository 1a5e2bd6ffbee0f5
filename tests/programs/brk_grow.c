// brk grows with zeros, and memory given back and taken again is zero too. Raw brk only.
#include "check.h"

static uint8_t *raw_brk(void *to) { return (uint8_t *)syscall(SYS_brk, to); }

int main(void) {
    uint8_t *start = (uint8_t *)(((uintptr_t)raw_brk(NULL) + PAGE - 1) & -PAGE);
    uint8_t *end = start + 64 * PAGE;
    CHECK(raw_brk(end) == end, "brk: expected to grow");
    fill(start, 64 * PAGE, 1);
    ready_and_wait();
    CHECK(raw_brk(NULL) == end, "brk: expected %p, saw %p", end, raw_brk(NULL));
    CHECK_FILLED(start, 64 * PAGE, 1);
    uint8_t *grown = end + 300 * PAGE;
    CHECK(raw_brk(grown) == grown, "brk: expected to grow to %p, saw %p", grown, raw_brk(NULL));
    CHECK_ZEROS(end, 300 * PAGE);
    CHECK_FILLED(start, 64 * PAGE, 1);
    uint8_t *less = start + 32 * PAGE;
    CHECK(raw_brk(less) == less, "brk: expected to shrink to %p, saw %p", less, raw_brk(NULL));
    CHECK(raw_brk(grown) == grown, "brk: expected to grow again, saw %p", raw_brk(NULL));
    CHECK_FILLED(start, 32 * PAGE, 1);
    CHECK_ZEROS(less, grown - less);
    DONTNEED(start, 16 * PAGE);
    CHECK_ZEROS(start, 16 * PAGE);
    pass();
}
