// Names with a line end, which the kernel prints as an escape, and a name that looks like that escape.
#include "file_map.h"

static void check_file(const char *name, int fd) {
    struct stat named, held;
    MUST(stat(name, &named));
    MUST(fstat(fd, &held));
    CHECK(named.st_ino == held.st_ino, "expected the file that has the name");
}

int main(void) {
    const char *names[] = {"two\nlines", "not\\012two"};
    int fds[2];
    uint8_t *shared[2], *private[2];
    for (int at = 0; at < 2; at++) {
        fds[at] = file_with(names[at], 2 * PAGE, 1 + at);
        shared[at] = map_file(fds[at], 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        private[at] = map_file(fds[at], 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
        fill(private[at], PAGE, 7 + at);
    }
    ready_and_wait();
    for (int at = 0; at < 2; at++) {
        CHECK_FILLED(shared[at], 2 * PAGE, 1 + at);
        CHECK_FILLED(private[at], PAGE, 7 + at);
        check_file(names[at], fds[at]);
    }
    pass();
}
