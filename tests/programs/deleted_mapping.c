// Mappings of files that have no name any more: content and sharing stay, in a clone of its own.
#include "file_map.h"

#define RW (PROT_READ | PROT_WRITE)

int main(void) {
    int fd = file_with("unnamed", 8 * PAGE + 100, 1);
    uint8_t *reading = map_file(fd, 9 * PAGE, PROT_READ, MAP_SHARED, 0);
    uint8_t *writing = map_file(fd, 4 * PAGE, RW, MAP_SHARED, 2 * PAGE);
    uint8_t *code = map_file(fd, 2 * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, 0);
    uint8_t *data = map_file(fd, 6 * PAGE, RW, MAP_PRIVATE, 2 * PAGE);
    uint8_t *constant = map_file(fd, 3 * PAGE, RW, MAP_PRIVATE, 0);
    close(fd);
    MUST(unlink("unnamed"));
    fill(data + PAGE, PAGE, 2);
    fill(constant + PAGE, PAGE, 3);
    MUST(mprotect(constant, 3 * PAGE, PROT_READ));
    ready_and_wait();
    CHECK_FILLED(reading, 8 * PAGE + 100, 1);
    CHECK_ZEROS(reading + 8 * PAGE + 100, PAGE - 100);
    CHECK_FILLED_FROM(writing, 4 * PAGE, 1, 2 * PAGE);
    CHECK_FILLED(code, 2 * PAGE, 1);
    CHECK_FILLED_FROM(data, PAGE, 1, 2 * PAGE);
    CHECK_FILLED(data + PAGE, PAGE, 2);
    CHECK_FILLED(constant + PAGE, PAGE, 3);
    // One file still: a write shows where nothing private hides it.
    fill(writing, 3 * PAGE, 4);
    CHECK_FILLED(reading + 2 * PAGE, 3 * PAGE, 4);
    CHECK_FILLED(data, PAGE, 4);
    CHECK_FILLED(data + PAGE, PAGE, 2);
    // What is discarded comes back from the file.
    DONTNEED(data, 2 * PAGE);
    CHECK_FILLED_FROM(data + PAGE, PAGE, 4, PAGE);
    DONTNEED(constant, 3 * PAGE);
    CHECK_FILLED_FROM(constant + PAGE, PAGE, 1, PAGE);
    pass();
}
