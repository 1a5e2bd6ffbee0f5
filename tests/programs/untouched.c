// Memory that nothing has touched before the checkpoint. Commands, one byte each:
//   t  touch the first half of it, and go on
//   another: end
#include "check.h"

#define BYTES (6 * HUGE)

// It grows as one mapping, whatever the parts of it are that a clone has made.
static void grow(uint8_t *at) {
    fill(at, BYTES / 2, 33);
    uint8_t *grown = raw_mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE, NULL);
    CHECK(grown != MAP_FAILED, "mremap of memory that was not touched: %s", strerror(errno));
    CHECK_FILLED(grown, BYTES / 2, 33);
    CHECK_ZEROS(grown + BYTES / 2, BYTES / 2 + BYTES);
}

int main(void) {
    uint8_t *stored = filled(BYTES, 31);
    uint8_t *fresh = anonymous(2 * BYTES);
    char byte = ready_and_wait();
    for (; byte == 't'; MUST(read(0, &byte, 1))) {
        CHECK_ZEROS(fresh, BYTES);
        fill(fresh, BYTES, 32);
        note("has touched it");
    }
    CHECK_FILLED(stored, BYTES, 31);
    grow(fresh + BYTES);
    pass();
}
