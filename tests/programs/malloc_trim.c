// glibc gives memory back with madvise and brk, and takes it for zero in calloc.
#include "check.h"
#include <malloc.h>

#define BLOCKS 512
#define BYTES 30000

int main(void) {
    uint8_t *blocks[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BYTES);
        fill(blocks[i], BYTES, i);
    }
    for (unsigned i = 0; i < BLOCKS; i += 2) free(blocks[i]);
    ready_and_wait();
    malloc_trim(0);
    for (unsigned i = 1; i < BLOCKS; i += 2) CHECK_FILLED(blocks[i], BYTES, i);
    for (unsigned i = 0; i < BLOCKS; i += 2) {
        blocks[i] = calloc(1, BYTES);
        CHECK_ZEROS(blocks[i], BYTES);
        fill(blocks[i], BYTES, i);
    }
    for (unsigned i = BLOCKS / 2; i < BLOCKS; i++) free(blocks[i]);
    malloc_trim(0);
    for (unsigned i = 0; i < BLOCKS / 2; i++) CHECK_FILLED(blocks[i], BYTES, i);
    uint8_t *large = calloc(1, BLOCKS / 2 * BYTES);
    CHECK_ZEROS(large, BLOCKS / 2 * BYTES);
    pass();
}
