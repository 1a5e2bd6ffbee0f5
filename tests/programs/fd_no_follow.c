// Files opened with flags that rule out links, or that ask for a file to be made: a clone opens some of them
// by way of /proc, where a link leads to each.
#include "check.h"
#include <pty.h>
#include <sys/stat.h>

#define RW (PROT_READ | PROT_WRITE)
#define MOST 16

static struct {
    int fd, flags;
    const char *what;
} files[MOST];
static int count;

static int keep(int fd, const char *what) {
    CHECK(fd >= 0, "%s: %s", what, strerror(errno));
    files[count].fd = fd;
    files[count].what = what;
    files[count++].flags = MUST(fcntl(fd, F_GETFL));
    return fd;
}

static char *map_shared(int fd) {
    MUST(ftruncate(fd, 2 * PAGE));
    char *at = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    strcpy(at, "kept");
    return at;
}

// Shared memory of POSIX, and Python's multiprocessing: made, mapped, and without a name from then on.
static char *map_gone(const char *path, int flags, const char *what) {
    int fd = keep(open(path, O_RDWR | O_CREAT | O_EXCL | flags, 0600), what);
    char *at = map_shared(fd);
    MUST(unlink(path));
    return at;
}

static void check_map(char *at, int fd, const char *what) {
    char seen[5] = {0};
    CHECK(!strcmp(at, "kept"), "%s: expected its content in memory", what);
    CHECK(pread(fd, seen, 4, 0) == 4 && !strcmp(seen, "kept"), "%s: expected its content by read", what);
    at[PAGE] = 'w';
    CHECK(pread(fd, seen, 1, PAGE) == 1 && seen[0] == 'w', "%s: expected one memory", what);
}

int main(void) {
    char shm[64];
    snprintf(shm, sizeof shm, "/dev/shm/farfork-no-follow-%d", getpid());
    char *maps[5];
    maps[0] = map_gone(shm, O_NOFOLLOW | O_CLOEXEC, "shared memory");
    maps[1] = map_gone("heap", O_NOFOLLOW, "mapped file");
    maps[2] = map_gone("sync", O_NOATIME | O_SYNC | O_NOFOLLOW, "mapped file with O_SYNC");
    maps[3] = map_shared(keep(open(".", O_TMPFILE | O_RDWR | O_NOFOLLOW, 0600), "mapped O_TMPFILE"));
    maps[4] = map_shared(keep(open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600), "mapped O_TMPFILE, O_EXCL"));
    int twice = keep(open("twice", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600), "deleted");
    int reader = keep(open("twice", O_RDONLY | O_NOFOLLOW), "deleted, opened twice");
    int place = keep(open("twice", O_PATH | O_NOFOLLOW), "deleted, O_PATH");
    CHECK(write(twice, "hi", 2) == 2, "write: %s", strerror(errno));
    MUST(unlink("twice"));
    int unnamed = keep(open(".", O_TMPFILE | O_RDWR | O_EXCL | O_NOFOLLOW, 0600), "O_TMPFILE");
    CHECK(write(unnamed, "hi", 2) == 2, "write: %s", strerror(errno));
    int directory = keep(open(".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW), "directory");
    int null = keep(open("/dev/null", O_RDWR | O_NOFOLLOW), "device");
    int named = keep(open("named", O_RDWR | O_CREAT | O_NOFOLLOW | O_TRUNC, 0600), "file with a name");
    int master, slave;
    MUST(openpty(&master, &slave, NULL, NULL, NULL));
    int terminal = keep(open(ttyname(slave), O_RDWR | O_NOCTTY | O_NOFOLLOW), "terminal");
    close(slave);
    ready_and_wait();
    for (int i = 0; i < 5; i++) check_map(maps[i], files[i].fd, files[i].what);
    for (int i = 0; i < count; i++) {
        // Only the kernel's own O_TMPFILE makes a file with that flag, and what is mapped is made in memory.
        int expected = i == 3 || i == 4 ? files[i].flags & ~O_TMPFILE : files[i].flags, lost = files[i].flags ^ expected;
        int now = MUST(fcntl(files[i].fd, F_GETFL)) & ~lost;
        CHECK(now == expected, "%s: expected flags %#o, saw %#o", files[i].what, expected, now);
    }
    char seen[3] = {0};
    CHECK(pread(reader, seen, 2, 0) == 2 && !strcmp(seen, "hi"), "opened twice: expected its content");
    CHECK(pread(unnamed, seen, 2, 0) == 2 && !strcmp(seen, "hi"), "O_TMPFILE: expected its content");
    REFUSED(read(place, seen, 1), EBADF);
    CHECK(write(null, "x", 1) == 1 && lseek(named, 0, SEEK_END) == 0, "write: %s", strerror(errno));
    CHECK(faccessat(directory, "named", F_OK, 0) == 0, "directory: expected a file in it");
    CHECK(write(terminal, "t", 1) == 1 && read(master, seen, 1) == 1 && seen[0] == 't', "terminal");
    pass();
}
