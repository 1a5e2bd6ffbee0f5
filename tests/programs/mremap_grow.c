// A growing mremap: old bytes kept, the tail zero, never a neighbouring image's bytes.
#include "check.h"

static void grow_moving(uint8_t *at, size_t from, size_t to, unsigned seed) {
    uint8_t *grown = raw_mremap(at, from, to, MREMAP_MAYMOVE, NULL);
    CHECK(grown != MAP_FAILED, "mremap from %zu to %zu: %s", from, to, strerror(errno));
    CHECK_FILLED(grown, from, seed);
    CHECK_ZEROS(grown + from, to - from);
    fill(grown, to, seed + 100);
    CHECK_FILLED(grown, to, seed + 100);
}

static void grow_in_place(uint8_t *at, unsigned seed) {
    uint8_t *grown = raw_mremap(at, 8 * PAGE, 16 * PAGE, 0, NULL);
    CHECK(grown == at, "mremap in place: expected %p, saw %p (%s)", at, grown, strerror(errno));
    CHECK_FILLED(at, 8 * PAGE, seed);
    CHECK_ZEROS(at + 8 * PAGE, 8 * PAGE);
}

// Room to grow into, and behind it a neighbour whose bytes must not come into sight.
static uint8_t *with_room(unsigned seed) {
    uint8_t *at = filled(32 * PAGE, seed);
    MUST(munmap(at + 8 * PAGE, 8 * PAGE));
    return at;
}

static void shrink_and_grow(uint8_t *at, unsigned seed) {
    uint8_t *same = raw_mremap(at, 16 * PAGE, 8 * PAGE, 0, NULL);
    CHECK(same == at, "mremap to shrink: expected %p, saw %p", at, same);
    grow_in_place(at, seed);
}

static void no_room(uint8_t *at, unsigned seed) {
    REFUSED(raw_mremap(at, 8 * PAGE, 40 * PAGE, 0, NULL), ENOMEM);
    CHECK_FILLED(at, 8 * PAGE, seed);
}

// Touched at both ends only: in a clone, parts of it may never have come from the image.
static uint8_t *touched_at_ends(size_t bytes) {
    uint8_t *at = anonymous(bytes);
    at[0] = 11;
    at[bytes - 1] = 12;
    return at;
}

static void grow_touched_at_ends(uint8_t *at, size_t bytes) {
    uint8_t *grown = raw_mremap(at, bytes, 2 * bytes, MREMAP_MAYMOVE, NULL);
    CHECK(grown != MAP_FAILED, "mremap of touched ends: %s", strerror(errno));
    CHECK(grown[0] == 11 && grown[bytes - 1] == 12, "touched ends: expected 11 12, saw %d %d",
          grown[0], grown[bytes - 1]);
    CHECK_ZEROS(grown + 1, bytes - 2);
    CHECK_ZEROS(grown + bytes, bytes);
}

int main(void) {
    uint8_t *ends = touched_at_ends(8 * MIB);
    uint8_t *small = filled(3 * PAGE, 1);
    uint8_t *large = filled(4 * MIB, 2);
    uint8_t *roomy = with_room(3);
    uint8_t *shrinking = filled(16 * PAGE, 4);
    uint8_t *cramped = with_room(5);
    ready_and_wait();
    grow_touched_at_ends(ends, 8 * MIB);
    grow_in_place(roomy, 3);
    CHECK_FILLED_FROM(roomy + 16 * PAGE, 16 * PAGE, 3, 16 * PAGE);
    no_room(cramped, 5);
    shrink_and_grow(shrinking, 4);
    grow_moving(small, 3 * PAGE, 300 * PAGE, 1);
    grow_moving(large, 4 * MIB, 9 * MIB, 2);
    pass();
}
