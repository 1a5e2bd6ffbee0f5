// memfds that are mapped and open in every way: descriptors, mappings and seals stay as they were.
#include "check.h"
#include <limits.h>
#include <sys/stat.h>

#define RW (PROT_READ | PROT_WRITE)
#define PAGES 16

static uint8_t *map(int fd, size_t pages, int prot, int flags, size_t from) {
    void *at = mmap(NULL, pages * PAGE, prot, flags, fd, from * PAGE);
    CHECK(at != MAP_FAILED, "mmap of a memfd: %s", strerror(errno));
    return at;
}

static int memfd(const char *name, unsigned flags, size_t pages, unsigned seed) {
    int fd = MUST(memfd_create(name, flags));
    uint8_t bytes[PAGES * PAGE];
    fill(bytes, pages * PAGE, seed);
    CHECK(write(fd, bytes, pages * PAGE) == (ssize_t)(pages * PAGE), "write: %s", strerror(errno));
    return fd;
}

static int reopened(int fd, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return MUST(open(path, flags));
}

// One object: a mapping, a duplicate, a second description that reads, one that appends.
static int one, twin, reader, appender;
static uint8_t *writing, *private;

static void make_one(void) {
    one = memfd("one of us", MFD_CLOEXEC, PAGES, 1);
    twin = MUST(fcntl(one, F_DUPFD, 100));
    reader = reopened(one, O_RDONLY | O_CLOEXEC);
    appender = reopened(one, O_WRONLY | O_APPEND);
    writing = map(one, 4, RW, MAP_SHARED, 2);
    private = map(one, 4, RW, MAP_PRIVATE, 2);
    fill(private + PAGE, PAGE, 9);
    MUST(lseek(one, 123, SEEK_SET));
    MUST(lseek(reader, 77, SEEK_SET));
}

static void check_one(void) {
    char link[PATH_MAX] = "", path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", one);
    MUST(readlink(path, link, sizeof link - 1));
    CHECK(!strcmp(link, "/memfd:one of us (deleted)"), "name: saw %s", link);
    CHECK(lseek(twin, 0, SEEK_CUR) == 123 && lseek(reader, 0, SEEK_CUR) == 77, "offsets: wrong");
    MUST(lseek(twin, 5, SEEK_SET));
    CHECK(lseek(one, 0, SEEK_CUR) == 5, "duplicates: expected one offset");
    CHECK(fcntl(one, F_GETFD) == FD_CLOEXEC && fcntl(twin, F_GETFD) == 0, "FD_CLOEXEC: wrong");
    CHECK(fcntl(one, F_GET_SEALS) == F_SEAL_SEAL, "seals: saw %d", fcntl(one, F_GET_SEALS));
    REFUSED(write(reader, "x", 1), EBADF);
    CHECK_FILLED_FROM(writing, 4 * PAGE, 1, 2 * PAGE);
    CHECK_FILLED_FROM(private, PAGE, 1, 2 * PAGE);
    CHECK_FILLED(private + PAGE, PAGE, 9);
    uint8_t byte = 200;
    CHECK(pwrite(one, &byte, 1, 2 * PAGE) == 1, "pwrite: %s", strerror(errno));
    CHECK(writing[0] == 200 && private[0] == 200, "mappings: expected to see a write");
    CHECK(write(appender, &byte, 1) == 1, "append: %s", strerror(errno));
    struct stat status;
    MUST(fstat(reader, &status));
    CHECK(status.st_size == PAGES * PAGE + 1, "size: saw %ld", (long)status.st_size);
    DONTNEED(private, 4 * PAGE);
    CHECK_FILLED_FROM(private + PAGE, PAGE, 1, 3 * PAGE);
}

// Sealed against writing, with a mapping that cannot become writable.
static int frozen, future, plain;
static uint8_t *frozen_map, *future_map, *late_map, *closed_map, *view;

static void make_sealed(void) {
    frozen = memfd("frozen", MFD_ALLOW_SEALING | MFD_CLOEXEC, 2, 3);
    MUST(fcntl(frozen, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW));
    frozen_map = map(frozen, 2, PROT_READ, MAP_PRIVATE, 0);
    future = memfd("future", MFD_ALLOW_SEALING, 2, 4);
    future_map = map(future, 2, RW, MAP_SHARED, 0);
    MUST(fcntl(future, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
    late_map = map(future, 2, PROT_READ, MAP_SHARED, 0);
    int closed = memfd("closed", 0, 3, 5);
    closed_map = map(closed, 1, RW, MAP_SHARED, 1);
    MUST(fchmod(closed, 0600));
    close(closed);
    plain = memfd("plain", 0, 1, 6);
    MUST(fchmod(plain, 0640));
    MUST(ftruncate(plain, 1L << 40));
    int reading = reopened(plain, O_RDONLY);
    view = map(reading, 1, PROT_READ, MAP_SHARED, 0);
    close(reading);
}

static void check_sealed(void) {
    uint8_t byte = 1;
    REFUSED(pwrite(frozen, &byte, 1, 0), EPERM);
    REFUSED(ftruncate(frozen, 1), EPERM);
    CHECK(fcntl(frozen, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), "seals: wrong");
    CHECK_FILLED(frozen_map, 2 * PAGE, 3);
    MUST(fcntl(frozen, F_ADD_SEALS, F_SEAL_SEAL));
    REFUSED(pwrite(future, &byte, 1, 0), EPERM);
    REFUSED(mprotect(late_map, PAGE, RW), EACCES);
    future_map[1] = 88;
    CHECK(late_map[1] == 88, "writable mapping of a sealed memfd: expected to write");
    CHECK_FILLED_FROM(closed_map, PAGE, 5, PAGE);
    closed_map[0] = 1;
    REFUSED(mprotect(view, PAGE, RW), EACCES);
    CHECK_FILLED(view, PAGE, 6);
    struct stat status;
    MUST(fstat(plain, &status));
    CHECK(status.st_size == 1L << 40 && status.st_blocks == 8 && (status.st_mode & 0777) == 0640,
          "holes and mode: saw %ld bytes, %ld blocks, mode %o", (long)status.st_size,
          (long)status.st_blocks, status.st_mode);
}

int main(void) {
    make_one();
    make_sealed();
    ready_and_wait();
    check_one();
    check_sealed();
    pid_t child = MUST(fork());
    if (!child) {
        writing[PAGE] = 33;
        _exit(0);
    }
    reap(child);
    CHECK(writing[PAGE] == 33, "write by a child: expected 33, saw %d", writing[PAGE]);
    pass();
}
