// Locks that several may hold at once: parent and clones all have them. A read lease too.
#include "locks.h"
#include <signal.h>

static int file(const char *name) { return MUST(open(name, O_RDWR | O_CREAT, 0644)); }

int main(void) {
    int posix = file("posix"), ofd = file("ofd"), whole = file("whole"), free_again = file("free");
    close(file("lease"));
    int lease = MUST(open("lease", O_RDONLY));
    struct flock some = range(F_RDLCK, 10, 20), rest = range(F_RDLCK, 1000, 0), other = range(F_RDLCK, 5, 5);
    MUST(fcntl(posix, F_SETLK, &some));
    MUST(fcntl(posix, F_SETLK, &rest));
    MUST(fcntl(ofd, F_OFD_SETLK, &other));
    MUST(flock(whole, LOCK_SH));
    MUST(flock(free_again, LOCK_SH));
    MUST(flock(free_again, LOCK_UN));
    int leased = fcntl(lease, F_SETLEASE, F_RDLCK) == 0;
    sigset_t usr = {0};
    sigaddset(&usr, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr, NULL);
    if (leased) MUST(fcntl(lease, F_SETSIG, SIGUSR1));
    ready_and_wait();
    meets("posix", range(F_WRLCK, 0, 15), F_RDLCK, 10, 0);
    meets("posix", range(F_WRLCK, 2000, 1), F_RDLCK, 1000, 0);
    meets("posix", range(F_WRLCK, 30, 900), F_UNLCK, 0, 0);
    meets("ofd", range(F_WRLCK, 0, 0), F_RDLCK, 5, 0);
    meets_flock("whole", LOCK_EX, EWOULDBLOCK);
    meets_flock("whole", LOCK_SH, 0);
    meets_flock("free", LOCK_EX, 0);
    // Released by unlocking, as the holder's own.
    struct flock gone = range(F_UNLCK, 0, 0);
    MUST(fcntl(posix, F_SETLK, &gone));
    MUST(fcntl(ofd, F_OFD_SETLK, &gone));
    if (!leased) pass();
    CHECK(fcntl(lease, F_GETLEASE) == F_RDLCK, "lease: saw %d", fcntl(lease, F_GETLEASE));
    CHECK(fcntl(lease, F_GETSIG) == SIGUSR1, "lease: expected SIGUSR1, saw %d", fcntl(lease, F_GETSIG));
    CHECK(fcntl(lease, F_GETOWN) == getpid(), "lease: expected to be told, saw %d", fcntl(lease, F_GETOWN));
    MUST(fcntl(lease, F_SETLEASE, F_UNLCK));
    pass();
}
