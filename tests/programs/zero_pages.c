// Anonymous memory that was only read is the zero page: it stays zero and becomes writable.
#include "check.h"

int main(void) {
    uint8_t *read_only = anonymous(256 * PAGE);
    for (size_t page = 0; page < 256; page += 2) CHECK_ZEROS(read_only + page * PAGE, 1);
    uint8_t *zeroed = filled(64 * PAGE, 1);
    memset(zeroed, 0, 64 * PAGE);
    uint8_t *mixed = anonymous(64 * PAGE);
    for (size_t page = 0; page < 64; page += 3) fill(mixed + page * PAGE, PAGE, page);
    ready_and_wait();
    CHECK_ZEROS(read_only, 256 * PAGE);
    CHECK_ZEROS(zeroed, 64 * PAGE);
    for (size_t page = 0; page < 64; page++) {
        if (page % 3)
            CHECK_ZEROS(mixed + page * PAGE, PAGE);
        else
            CHECK_FILLED(mixed + page * PAGE, PAGE, page);
    }
    fill(read_only, 256 * PAGE, 2);
    CHECK_FILLED(read_only, 256 * PAGE, 2);
    fill(zeroed, 64 * PAGE, 3);
    DONTNEED(zeroed, 64 * PAGE);
    CHECK_ZEROS(zeroed, 64 * PAGE);
    pass();
}
