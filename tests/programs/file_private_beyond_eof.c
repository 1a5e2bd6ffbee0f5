// Pages beyond the end of a file answer with SIGBUS, before and after; the tail of the last
// page is zero.
#include "fault.h"
#include "file_map.h"

int main(void) {
    int fd = file_with("short", 2 * PAGE + 100, 1);
    uint8_t *reading = map_file(fd, 8 * PAGE, PROT_READ, MAP_PRIVATE, 0);
    uint8_t *writing = map_file(fd, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    close(fd);
    fill(writing + PAGE, PAGE, 2);
    catch_faults();
    CHECK(fault_of_read(reading + 3 * PAGE) == SIGBUS, "before: expected SIGBUS");
    ready_and_wait();
    CHECK_FILLED(reading, 2 * PAGE + 100, 1);
    CHECK_ZEROS(reading + 2 * PAGE + 100, PAGE - 100);
    CHECK_FILLED(writing + PAGE, PAGE, 2);
    CHECK_FILLED_FROM(writing + 2 * PAGE, 100, 1, 2 * PAGE);
    for (size_t page = 3; page < 8; page++) {
        int read = fault_of_read(reading + page * PAGE), write = fault_of_write(writing + page * PAGE);
        CHECK(read == SIGBUS && write == SIGBUS, "page %zu: expected SIGBUS twice, saw %d and %d",
              page, read, write);
    }
    pass();
}
