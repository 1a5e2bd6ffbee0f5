// A private file mapping with some pages written: DONTNEED brings the FILE's bytes back.
#include "file_map.h"

#define BYTES (32 * PAGE)

int main(void) {
    int fd = file_with("mapped", BYTES, 1);
    uint8_t *writable = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    uint8_t *offset = map_file(fd, 8 * PAGE, PROT_READ, MAP_PRIVATE, 8 * PAGE);
    close(fd);
    fill(writable + 4 * PAGE, 8 * PAGE, 2);
    ready_and_wait();
    CHECK_FILLED(writable, 4 * PAGE, 1);
    CHECK_FILLED(writable + 4 * PAGE, 8 * PAGE, 2);
    CHECK_FILLED_FROM(writable + 12 * PAGE, 20 * PAGE, 1, 12 * PAGE);
    CHECK_FILLED_FROM(offset, 8 * PAGE, 1, 8 * PAGE);
    DONTNEED(writable + 6 * PAGE, 2 * PAGE);
    CHECK_FILLED(writable + 4 * PAGE, 2 * PAGE, 2);
    CHECK_FILLED_FROM(writable + 6 * PAGE, 2 * PAGE, 1, 6 * PAGE);
    CHECK_FILLED_FROM(writable + 8 * PAGE, 4 * PAGE, 2, 4 * PAGE);
    fill(writable + 16 * PAGE, 2 * PAGE, 3);
    DONTNEED(writable, BYTES);
    CHECK_FILLED(writable, BYTES, 1);
    uint8_t byte;
    fd = MUST(open("mapped", O_RDONLY));
    CHECK(pread(fd, &byte, 1, 4 * PAGE) == 1 && byte == pattern(4 * PAGE, 1),
          "the file: expected to be untouched");
    pass();
}
