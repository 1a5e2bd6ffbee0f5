// Regular files: offsets, flags, close-on-exec, and which descriptors share an open file.
#include "file_map.h"

static off_t at(int fd) { return MUST(lseek(fd, 0, SEEK_CUR)); }

static void check_offset(const char *what, int fd, off_t expected) {
    CHECK(at(fd) == expected, "%s: expected offset %ld, saw %ld", what, expected, at(fd));
}

int main(void) {
    close(file_with("regular", 10000, 1));
    int first = MUST(open("regular", O_RDONLY | O_CLOEXEC));
    int second = MUST(open("regular", O_RDONLY | O_NONBLOCK | O_NOATIME));
    int duplicate = MUST(fcntl(first, F_DUPFD, 100));
    int append = MUST(open("appended", O_WRONLY | O_APPEND | O_CREAT | O_TRUNC, 0644));
    int directory = MUST(open(".", O_RDONLY | O_DIRECTORY));
    int path = MUST(open("regular", O_PATH | O_CLOEXEC));
    MUST(lseek(first, 1234, SEEK_SET));
    MUST(lseek(second, 77, SEEK_SET));
    CHECK(write(append, "one\n", 4) == 4, "write: %s", strerror(errno));
    int flags[] = {fcntl(first, F_GETFL), fcntl(second, F_GETFL), fcntl(append, F_GETFL),
                   fcntl(directory, F_GETFL), fcntl(path, F_GETFL)};
    ready_and_wait();
    check_offset("first", first, 1234);
    check_offset("duplicate", duplicate, 1234);
    check_offset("second", second, 77);
    uint8_t bytes[100];
    CHECK(read(first, bytes, 100) == 100, "read: %s", strerror(errno));
    CHECK_FILLED_FROM(bytes, 100, 1, 1234);
    check_offset("duplicate, after a read of the first", duplicate, 1334);
    check_offset("second, after a read of the first", second, 77);
    CHECK(fcntl(first, F_GETFD) == FD_CLOEXEC, "first: expected close-on-exec");
    CHECK(fcntl(duplicate, F_GETFD) == 0, "duplicate: expected no close-on-exec");
    int fds[] = {first, second, append, directory, path};
    for (int i = 0; i < 5; i++)
        CHECK(fcntl(fds[i], F_GETFL) == flags[i], "flags of %d: expected %#x, saw %#x", fds[i], flags[i],
              fcntl(fds[i], F_GETFL));
    CHECK(write(append, "two\n", 4) == 4, "append: %s", strerror(errno));
    // The parent and other clones may have appended to the same file meanwhile.
    off_t end = lseek(append, 0, SEEK_END);
    CHECK(end >= 8 && end % 4 == 0, "appended file: expected 8 bytes or more, saw %ld", end);
    int inside = MUST(openat(directory, "regular", O_RDONLY));
    CHECK(inside != first && inside != second && inside > 2, "openat: expected a free number");
    pass();
}
