// An open file that has no name any more cannot be opened by a clone.
#include "file_map.h"

int main(void) {
    int fd = file_with("deleted", PAGE, 1);
    MUST(unlink("deleted"));
    ready_and_wait();
    uint8_t page[PAGE];
    CHECK(pread(fd, page, PAGE, 0) == (ssize_t)PAGE, "pread: %s", strerror(errno));
    CHECK_FILLED(page, PAGE, 1);
    pass();
}
