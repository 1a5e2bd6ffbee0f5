// Locks as another process meets them: a child tries, since a process never meets its own.
#ifndef FARFORK_LOCKS_H
#define FARFORK_LOCKS_H

#include "check.h"
#include <sys/file.h>

static inline struct flock range(short type, off_t start, off_t length) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
}

// In a child with descriptors of its own: the lock `try` meets has to be `type` from `start` on.
static inline void meets(const char *path, struct flock try, short type, off_t start, pid_t holder) {
    pid_t child = fork();
    if (child == 0) {
        int fd = MUST(open(path, O_RDWR));
        MUST(fcntl(fd, F_OFD_GETLK, &try));
        CHECK(try.l_type == type, "%s: expected to meet a lock of type %d, saw %d", path, type, try.l_type);
        if (type != F_UNLCK) {
            CHECK(try.l_start == start, "%s: expected a lock from %ld on, saw %ld", path, start, try.l_start);
            CHECK(!holder || try.l_pid == holder, "%s: expected %d to hold it, saw %d", path, holder, try.l_pid);
        }
        _exit(0);
    }
    reap(child);
}

static inline void meets_flock(const char *path, int try, int expected) {
    pid_t child = fork();
    if (child == 0) {
        int fd = MUST(open(path, O_RDWR));
        int got = flock(fd, try | LOCK_NB) ? errno : 0;
        CHECK(got == expected, "flock of %s: expected errno %d, saw %d", path, expected, got);
        _exit(0);
    }
    reap(child);
}

#endif
