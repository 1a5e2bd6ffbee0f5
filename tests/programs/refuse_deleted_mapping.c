// A mapping of a file that has no name any more: its untouched pages cannot be found again.
#include "file_map.h"

int main(void) {
    int fd = file_with("unnamed", 4 * PAGE, 1);
    uint8_t *mapped = map_file(fd, 4 * PAGE, PROT_READ, MAP_SHARED, 0);
    close(fd);
    MUST(unlink("unnamed"));
    ready_and_wait();
    CHECK_FILLED(mapped, 4 * PAGE, 1);
    pass();
}
