// Threads blocked in system calls that a checkpoint interrupts: each ends as if it had not been.
#include "check.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#define LONG_MS 3000

static int data[2], silent[2], word, released;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// Not much shorter than asked; how much longer depends on when it was restored.
static void lasted(const char *what, double since) {
    double seconds = now() - since;
    CHECK(seconds >= LONG_MS / 1000.0 - 0.05, "%s: expected at least %d ms, saw %.0f", what, LONG_MS,
          seconds * 1000);
}

static void *in_nanosleep(void *unused) {
    (void)unused;
    double since = now();
    struct timespec time = {LONG_MS / 1000, LONG_MS % 1000 * 1000000L}, left = {0};
    CHECK(syscall(SYS_nanosleep, &time, &left) == 0, "nanosleep: %s", strerror(errno));
    lasted("nanosleep", since);
    return NULL;
}

static void *in_clock_nanosleep(void *unused) {
    (void)unused;
    double since = now();
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LONG_MS / 1000;
    long error = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    CHECK(error == 0, "clock_nanosleep: %s", strerror(errno));
    lasted("clock_nanosleep", since);
    return NULL;
}

static void *in_poll(void *unused) {
    (void)unused;
    double since = now();
    struct pollfd set = {.fd = silent[0], .events = POLLIN};
    long got = syscall(SYS_poll, &set, 1, LONG_MS);
    CHECK(got == 0, "poll: expected a timeout, saw %ld (%s)", got, strerror(errno));
    lasted("poll", since);
    return NULL;
}

static void *in_futex(void *unused) {
    (void)unused;
    double since = now();
    struct timespec time = {LONG_MS / 1000, 0};
    long got = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
    CHECK(got == -1 && errno == ETIMEDOUT, "futex: expected ETIMEDOUT, saw %ld (%s)", got,
          strerror(errno));
    lasted("futex", since);
    return NULL;
}

// epoll_wait is one of the calls that a stop may end with EINTR by the manual; the kernel
// restarts none of them by itself, and neither do we ask for more.
static void *in_epoll(void *unused) {
    (void)unused;
    int epoll = MUST(epoll_create1(0)), event = MUST(eventfd(0, 0));
    struct epoll_event wanted = {.events = EPOLLIN}, seen;
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wanted));
    long got;
    do got = syscall(SYS_epoll_pwait, epoll, &seen, 1, LONG_MS, NULL, 8);
    while (got < 0 && errno == EINTR);
    CHECK(got == 0, "epoll_pwait: expected a timeout, saw %ld (%s)", got, strerror(errno));
    return NULL;
}

static void *in_read(void *unused) {
    (void)unused;
    char bytes[4];
    long got = syscall(SYS_read, data[0], bytes, 4);
    CHECK(got == 4 && !memcmp(bytes, "data", 4), "read of a pipe: expected 4 bytes, saw %ld (%s)",
          got, strerror(errno));
    return NULL;
}

static void woken(int number) {
    (void)number;
    released++;
}

static void *in_sigsuspend(void *unused) {
    (void)unused;
    sigset_t none;
    sigfillset(&none);
    sigdelset(&none, SIGUSR1);
    long got = syscall(SYS_rt_sigsuspend, &none, 8);
    CHECK(got == -1 && errno == EINTR && released == 1,
          "sigsuspend: expected EINTR after one signal, saw %ld and %d signals", got, released);
    return NULL;
}

static void *in_sigtimedwait(void *unused) {
    (void)unused;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    int got;
    do got = sigwaitinfo(&set, NULL);
    while (got < 0 && errno == EINTR);
    CHECK(got == SIGUSR2, "sigwaitinfo: expected SIGUSR2, saw %d", got);
    return NULL;
}

int main(void) {
    void *(*bodies[])(void *) = {in_nanosleep, in_clock_nanosleep, in_poll, in_futex,
                                 in_epoll,     in_read,            in_sigsuspend, in_sigtimedwait};
    pthread_t threads[8];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGUSR1, woken);
    MUST(pipe(data));
    MUST(pipe(silent));
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, bodies[i], NULL);
    usleep(100000);
    ready_and_wait();
    CHECK(write(data[1], "data", 4) == 4, "write: %s", strerror(errno));
    pthread_kill(threads[6], SIGUSR1);
    pthread_kill(threads[7], SIGUSR2);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    pass();
}
