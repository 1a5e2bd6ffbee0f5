// A shared mapping of a regular file that is still there maps the same file again.
#include "file_map.h"

int main(void) {
    int fd = file_with("shared", 16 * PAGE, 1);
    uint8_t *shared = map_file(fd, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 4 * PAGE);
    uint8_t *reading = map_file(fd, 16 * PAGE, PROT_READ, MAP_SHARED, 0);
    close(fd);
    ready_and_wait();
    CHECK_FILLED_FROM(shared, 8 * PAGE, 1, 4 * PAGE);
    CHECK_FILLED(reading, 4 * PAGE, 1);
    // Each clone writes the same bytes, so their order does not matter.
    fill(shared, PAGE, 2);
    CHECK_FILLED(reading + 4 * PAGE, PAGE, 2);
    fd = MUST(open("shared", O_RDONLY));
    uint8_t page[PAGE];
    CHECK(pread(fd, page, PAGE, 4 * PAGE) == (ssize_t)PAGE, "pread: %s", strerror(errno));
    CHECK_FILLED(page, PAGE, 2);
    for (size_t i = 0; i < PAGE; i++) shared[i] = pattern(4 * PAGE + i, 1);
    pass();
}
