// Files whose names end as the kernel shows those that were deleted: they are there, and shared with the parent.
#include "file_map.h"

int main(void) {
    const char *name = "kept (deleted)";
    int fd = file_with(name, 2 * PAGE, 1);
    uint8_t *shared = map_file(fd, 2 * PAGE, PROT_READ, MAP_SHARED, 0);
    uint8_t *private = map_file(fd, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    int closed = file_with("mapped (deleted)", PAGE, 3);
    uint8_t *writing = map_file(closed, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    close(closed);
    fill(private, PAGE, 2);
    struct stat named, held;
    ready_and_wait();
    CHECK_FILLED(shared, 2 * PAGE, 1);
    CHECK_FILLED(private, PAGE, 2);
    MUST(stat(name, &named));
    MUST(fstat(fd, &held));
    CHECK(named.st_ino == held.st_ino && named.st_dev == held.st_dev, "expected the file that has the name");
    writing[7] = 99;
    uint8_t seen = 0;
    int again = MUST(open("mapped (deleted)", O_RDONLY));
    CHECK(pread(again, &seen, 1, 7) == 1 && seen == 99, "expected one file, saw %u in it", seen);
    pass();
}
