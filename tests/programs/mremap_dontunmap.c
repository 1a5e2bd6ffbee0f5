// MREMAP_DONTUNMAP moves the pages and leaves the old range mapped: it reads zeros.
#include "check.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

int main(void) {
    uint8_t *memory = filled(32 * PAGE, 1);
    ready_and_wait();
    uint8_t *at = raw_mremap(memory + 8 * PAGE, 8 * PAGE, 8 * PAGE,
                             MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(at != MAP_FAILED, "mremap DONTUNMAP: %s", strerror(errno));
    CHECK_FILLED_FROM(at, 8 * PAGE, 1, 8 * PAGE);
    CHECK_ZEROS(memory + 8 * PAGE, 8 * PAGE);
    CHECK_FILLED(memory, 8 * PAGE, 1);
    CHECK_FILLED_FROM(memory + 16 * PAGE, 16 * PAGE, 1, 16 * PAGE);
    fill(memory + 8 * PAGE, 8 * PAGE, 2);
    CHECK_FILLED_FROM(at, 8 * PAGE, 1, 8 * PAGE);
    pass();
}
