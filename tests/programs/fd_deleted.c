// Files without a name: deleted ones, opened once and twice, with holes, and O_TMPFILE.
#include "file_map.h"
#include <sys/xattr.h>

#define FAR (64 * MIB)

static void check_same_inode(int left, int right, int expected, const char *what) {
    struct stat a, b;
    MUST(fstat(left, &a));
    MUST(fstat(right, &b));
    CHECK((a.st_ino == b.st_ino && a.st_dev == b.st_dev) == expected, "%s: one inode: expected %d", what, expected);
    CHECK(a.st_nlink == 0 && b.st_nlink == 0, "%s: expected no names, saw %lu, %lu", what, a.st_nlink, b.st_nlink);
}

static void check_at(int fd, size_t from, size_t bytes, unsigned seed) {
    static uint8_t buffer[2 * PAGE];
    CHECK(pread(fd, buffer, bytes, from) == (ssize_t)bytes, "pread at %zu: %s", from, strerror(errno));
    CHECK_FILLED_FROM(buffer, bytes, seed, from);
}

static void check_sparse(int fd, const struct stat *before) {
    struct stat now;
    uint8_t page[PAGE];
    MUST(fstat(fd, &now));
    CHECK(now.st_size == (off_t)(FAR + PAGE + 5), "size: saw %ld", now.st_size);
    CHECK(now.st_blocks <= 64, "holes: expected few blocks, saw %ld", now.st_blocks);
    CHECK(now.st_mode == before->st_mode && now.st_uid == before->st_uid && now.st_gid == before->st_gid,
          "mode or owner: saw %o %u %u", now.st_mode, now.st_uid, now.st_gid);
    CHECK(now.st_mtim.tv_sec == before->st_mtim.tv_sec && now.st_mtim.tv_nsec == before->st_mtim.tv_nsec, "mtime: saw %ld", now.st_mtim.tv_sec);
    CHECK(pread(fd, page, PAGE, PAGE * 3) == (ssize_t)PAGE, "pread: %s", strerror(errno));
    CHECK_ZEROS(page, PAGE);
    check_at(fd, 0, PAGE, 2);
    check_at(fd, FAR, PAGE, 2);
}

int main(void) {
    char value[16];
    int first = file_with("first", 10000, 1), twin = MUST(fcntl(first, F_DUPFD, 50));
    int reader = MUST(open("first", O_RDONLY | O_CLOEXEC)), log = MUST(open("first", O_WRONLY | O_APPEND));
    int path = MUST(open("first", O_PATH));
    MUST(unlink("first"));
    int other = file_with("first", 10000, 4);
    MUST(unlink("first"));
    int sparse = file_with("sparse", PAGE, 2);
    uint8_t page[PAGE];
    for (size_t i = 0; i < PAGE; i++) page[i] = pattern(FAR + i, 2);
    CHECK(pwrite(sparse, page, PAGE, FAR) == (ssize_t)PAGE, "pwrite: %s", strerror(errno));
    MUST(ftruncate(sparse, FAR + PAGE + 5));
    MUST(fchown(sparse, 123, 456));
    MUST(fchmod(sparse, 02640));
    int has_attributes = fsetxattr(sparse, "user.kept", "value", 5, 0) == 0;
    MUST(futimens(sparse, (struct timespec[]){{1000, 5}, {2000000000, 77}}));
    MUST(unlink("sparse"));
    struct stat before;
    MUST(fstat(sparse, &before));
    int unnamed = MUST(open(".", O_TMPFILE | O_RDWR, 0600)), flags = MUST(fcntl(unnamed, F_GETFL));
    CHECK(write(unnamed, "never named", 11) == 11, "write: %s", strerror(errno));
    int gone_from = file_with("replaced", 100, 5);
    close(file_with("new", 100, 6));
    MUST(rename("new", "replaced"));
    int linked = file_with("linked", 100, 7);
    unlink("kept");
    MUST(link("linked", "kept"));
    MUST(unlink("linked"));
    MUST(lseek(first, 3000, SEEK_SET));
    MUST(lseek(reader, 9000, SEEK_SET));
    int log_flags = MUST(fcntl(log, F_GETFL));
    ready_and_wait();
    CHECK(lseek(twin, 0, SEEK_CUR) == 3000 && lseek(reader, 0, SEEK_CUR) == 9000, "offsets");
    check_same_inode(first, reader, 1, "opened twice");
    check_same_inode(first, log, 1, "opened for appending");
    check_same_inode(first, path, 1, "O_PATH");
    check_same_inode(first, other, 0, "deleted later");
    CHECK(fcntl(log, F_GETFL) == log_flags, "flags: expected %#x, saw %#x", log_flags, fcntl(log, F_GETFL));
    CHECK(write(log, "end", 3) == 3, "write: %s", strerror(errno));
    CHECK(lseek(first, 0, SEEK_END) == 10003, "appended: expected 10003 bytes");
    REFUSED(write(reader, "x", 1), EBADF);
    REFUSED(read(path, value, 1), EBADF);
    check_at(reader, 2000, 2 * PAGE - 192, 1);
    check_at(other, 0, 2 * PAGE, 4);
    check_sparse(sparse, &before);
    if (has_attributes) CHECK(fgetxattr(sparse, "user.kept", value, 16) == 5 && !memcmp(value, "value", 5), "attribute");
    CHECK(fcntl(unnamed, F_GETFL) == flags, "O_TMPFILE: expected flags %#x, saw %#x", flags, fcntl(unnamed, F_GETFL));
    CHECK(pread(unnamed, value, 16, 0) == 11 && !memcmp(value, "never named", 11), "O_TMPFILE content");
    check_at(gone_from, 0, 100, 5);
    check_at(linked, 0, 100, 7);
    struct stat kept, open_still;
    MUST(stat("kept", &kept));
    MUST(fstat(linked, &open_still));
    CHECK(kept.st_ino == open_still.st_ino, "the other name: expected one inode");
    pass();
}
