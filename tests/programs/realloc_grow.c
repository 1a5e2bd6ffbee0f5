// glibc's realloc of large blocks is mremap: grown many times, the old bytes stay.
#include "check.h"

#define STEP (16 * MIB)

static uint8_t *grow(uint8_t *block, size_t *bytes, size_t to, unsigned seed) {
    block = realloc(block, to);
    CHECK(block, "realloc to %zu: expected memory", to);
    CHECK_FILLED(block, *bytes, seed);
    fill(block, to, seed);
    *bytes = to;
    return block;
}

int main(void) {
    size_t one = STEP, two = MIB;
    uint8_t *a = malloc(one), *b = malloc(two);
    CHECK(a && b, "malloc: expected memory");
    fill(a, one, 1);
    fill(b, two, 2);
    ready_and_wait();
    for (int round = 0; round < 3; round++) a = grow(a, &one, one + STEP / 4 + 13, 1);
    for (int round = 0; round < 12; round++) b = grow(b, &two, two + MIB + 4097, 2);
    a = realloc(a, MIB);
    CHECK_FILLED(a, MIB, 1);
    free(b);
    uint8_t *clean = calloc(1, 8 * MIB);
    CHECK_ZEROS(clean, 8 * MIB);
    CHECK_FILLED(a, MIB, 1);
    pass();
}
