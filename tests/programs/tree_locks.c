// Locks of several processes on one file, and signals about a file to another process and a group.
#include "locks.h"
#include "tree.h"

static char path[64];
static int shared, signals;

static void set_lock(int fd, short type, off_t start) {
    struct flock lock = range(type, start, 10);
    MUST(fcntl(fd, F_SETLK, &lock));
}

// Holds a lock of its own by the description that it shares, whose flock it holds as well.
static void locker(void) {
    set_lock(shared, F_WRLCK, 100);
    in_place();
    meets(path, range(F_RDLCK, 100, 10), F_WRLCK, 100, getpid());
    MUST(flock(shared, LOCK_UN));
    in_place();
}

static volatile sig_atomic_t woken;

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    woken = info->si_fd == signals ? 1 : -1;
}

// Is told by a signal when its parent can read, alone in a group.
static void woken_up(void) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    MUST(sigaction(SIGRTMIN, &action, NULL));
    MUST(setpgid(0, 0));
    in_place();
    for (int i = 0; i < 2000 && !woken; i++) usleep(1000);
    CHECK(woken == 1, "expected a signal about fd %d, saw %d", signals, woken);
}

static void wake(int fd, pid_t owner) {
    MUST(fcntl(fd, F_SETSIG, SIGRTMIN));
    MUST(fcntl(fd, F_SETOWN, owner));
    MUST(fcntl(fd, F_SETFL, O_ASYNC));
}

int main(void) {
    snprintf(path, sizeof path, "tree_locks.XXXXXX");
    shared = MUST(mkstemp(path));
    MUST(flock(shared, LOCK_SH));
    set_lock(shared, F_RDLCK, 0);
    struct child locks = child(locker);
    int one[2], group[2];
    MUST(pipe(one));
    MUST(pipe(group));
    signals = one[0];
    struct child first = child(woken_up);
    signals = group[0];
    struct child second = child(woken_up);
    wake(one[0], first.pid);
    wake(group[0], -second.pid);
    ready_and_wait();
    meets(path, range(F_WRLCK, 0, 10), F_RDLCK, 0, getpid());
    meets(path, range(F_WRLCK, 100, 10), F_WRLCK, 100, locks.pid);
    meets_flock(path, LOCK_EX, EWOULDBLOCK);
    CHECK(is_one_file(getpid(), shared, locks.pid, shared), "expected one file");
    char byte;
    tell(locks);
    CHECK(read(locks.socket, &byte, 1) == 1, "the child has ended");
    meets_flock(path, LOCK_EX, 0); // the child has released it for both
    tell_and_reap(locks);
    meets(path, range(F_WRLCK, 100, 10), F_UNLCK, 0, 0);
    CHECK(write(one[1], "x", 1) == 1 && write(group[1], "x", 1) == 1, "write: %s", strerror(errno));
    tell_and_reap(first);
    tell_and_reap(second);
    pass();
}
