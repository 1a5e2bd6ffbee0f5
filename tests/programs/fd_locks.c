// Locks that one process alone can hold: a clone has them when the parent is gone, not before.
#include "locks.h"

int main(void) {
    int posix = MUST(open("posix", O_RDWR | O_CREAT, 0644)), ofd = MUST(open("ofd", O_RDWR | O_CREAT, 0644));
    int whole = MUST(open("whole", O_RDWR | O_CREAT, 0644)), twin = MUST(dup(whole));
    int deleted = MUST(open("deleted", O_RDWR | O_CREAT, 0644));
    struct flock write = range(F_WRLCK, 0, 100), read = range(F_RDLCK, 200, 10), all = range(F_WRLCK, 0, 0);
    MUST(fcntl(posix, F_SETLK, &write));
    MUST(fcntl(posix, F_SETLK, &read));
    MUST(fcntl(ofd, F_OFD_SETLK, &all));
    MUST(flock(whole, LOCK_EX));
    MUST(flock(deleted, LOCK_EX));
    MUST(unlink("deleted"));
    ready_and_wait();
    meets("posix", range(F_RDLCK, 0, 0), F_WRLCK, 0, getpid());
    meets("posix", range(F_WRLCK, 150, 100), F_RDLCK, 200, getpid());
    meets("posix", range(F_WRLCK, 100, 100), F_UNLCK, 0, 0);
    meets("ofd", range(F_RDLCK, 7, 1), F_WRLCK, 0, 0);
    meets_flock("whole", LOCK_SH, EWOULDBLOCK);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", deleted);
    int again = MUST(open(path, O_RDWR));
    REFUSED(flock(again, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    // Both descriptors are one description: either one gives the lock up.
    MUST(flock(twin, LOCK_UN));
    meets_flock("whole", LOCK_EX, 0);
    pass();
}
