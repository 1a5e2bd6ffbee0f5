// Clocks that count from a boot only go on, whatever the node's say; so do all that wait by them.
// With AHEAD set, in a time namespace of the program's own.
#include "clock.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/timerfd.h>

#define MONOTONIC_AHEAD 100000
#define BOOTTIME_AHEAD 300000
#define HOUR 3600
#define WAIT 2

static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE,
                                   CLOCK_BOOTTIME};
#define COUNT (sizeof clocks / sizeof *clocks)

// Programs get to a namespace that they have made by executing something.
static void move_ahead(char **arguments) {
    if (!getenv("AHEAD")) return;
    if (unshare(CLONE_NEWTIME)) {
        note("UNAVAILABLE time namespaces: %s", strerror(errno));
        return;
    }
    int fd = MUST(open("/proc/self/timens_offsets", O_WRONLY));
    MUST(dprintf(fd, "monotonic %d 0\nboottime %d 0\n", MONOTONIC_AHEAD, BOOTTIME_AHEAD));
    MUST(close(fd));
    MUST(unsetenv("AHEAD"));
    MUST(setenv("IS_AHEAD", "1", 1));
    execv("/proc/self/exe", arguments);
    FAIL("execv: %s", strerror(errno));
}

// Between two readings by system call lies what the vDSO says; coarse clocks lag by a tick.
static void check_agreement(void) {
    for (size_t i = 0; i < COUNT; i++) {
        double lag = clocks[i] == CLOCK_MONOTONIC_COARSE ? 0.011 : 0;
        double first = by_kernel(clocks[i]), vdso = by_vdso(clocks[i]), last = by_kernel(clocks[i]);
        CHECK(vdso >= first - lag - 1e-6 && vdso <= last + 1e-6,
              "clock %d by the vDSO: expected between %.6f and %.6f, saw %.6f", clocks[i], first, last,
              vdso);
    }
    FILE *file = fopen("/proc/uptime", "r");
    double uptime = 0, before = by_vdso(CLOCK_BOOTTIME);
    CHECK(file && fscanf(file, "%lf", &uptime) == 1, "/proc/uptime: expected a number");
    fclose(file);
    CHECK(uptime > before - 0.02 && uptime < before + 5, "uptime: expected %.2f, saw %.2f", before, uptime);
}

static struct timespec after(clockid_t clock, int delay) {
    struct timespec time;
    MUST(clock_gettime(clock, &time));
    time.tv_sec += delay;
    return time;
}

static void *sleeper(void *unused) {
    (void)unused;
    struct timespec until = after(CLOCK_MONOTONIC, WAIT);
    long error = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    CHECK(!error, "clock_nanosleep: %s", strerror(errno));
    double now = by_kernel(CLOCK_MONOTONIC);
    CHECK(now >= seconds(until), "sleep until %.3f: expected no less, saw %.3f", seconds(until), now);
    return NULL;
}

static void *waiter(void *unused) {
    (void)unused;
    static int word;
    struct timespec until = after(CLOCK_MONOTONIC, WAIT);
    long got = syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, &until, NULL, ~0);
    CHECK(got == -1 && errno == ETIMEDOUT, "futex: expected a time-out, saw %ld, %s", got, strerror(errno));
    double now = by_kernel(CLOCK_MONOTONIC);
    CHECK(now >= seconds(until), "futex until %.3f: expected no less, saw %.3f", seconds(until), now);
    return NULL;
}

static int timer_until(clockid_t clock, struct timespec until) {
    int fd = MUST(timerfd_create(clock, TFD_NONBLOCK));
    struct itimerspec time = {.it_value = until};
    MUST(timerfd_settime(fd, TFD_TIMER_ABSTIME, &time, NULL));
    return fd;
}

static void check_due(int fd, clockid_t clock, struct timespec until) {
    struct itimerspec left;
    MUST(timerfd_gettime(fd, &left));
    double due = by_kernel(clock) + seconds(left.it_value);
    CHECK(due > seconds(until) - 1 && due < seconds(until) + 1,
          "timer on clock %d: expected to be due at %.3f, saw %.3f", clock, seconds(until), due);
}

static void check_child(double least) {
    pid_t child = MUST(fork());
    if (!child) {
        check_agreement();
        CHECK(by_vdso(CLOCK_MONOTONIC) >= least, "child's clock: expected at least %.6f", least);
        _exit(0);
    }
    reap(child);
}

int main(int count, char **arguments) {
    (void)count;
    move_ahead(arguments);
    pthread_t threads[2];
    MUST(-pthread_create(&threads[0], NULL, sleeper, NULL));
    MUST(-pthread_create(&threads[1], NULL, waiter, NULL));
    struct timespec late = after(CLOCK_MONOTONIC, HOUR), late_boot = after(CLOCK_BOOTTIME, HOUR);
    int timer = timer_until(CLOCK_MONOTONIC, late), boot_timer = timer_until(CLOCK_BOOTTIME, late_boot);
    int soon = timer_until(CLOCK_MONOTONIC, after(CLOCK_MONOTONIC, WAIT));
    check_agreement();
    double before[COUNT], wall = by_vdso(CLOCK_REALTIME);
    for (size_t i = 0; i < COUNT; i++) before[i] = by_vdso(clocks[i]);
    if (getenv("IS_AHEAD"))
        CHECK(before[0] >= MONOTONIC_AHEAD && before[3] >= BOOTTIME_AHEAD, "expected clocks ahead, saw %.0f, %.0f",
              before[0], before[3]);
    ready_and_wait();
    check_agreement();
    for (size_t i = 0; i < COUNT; i++) {
        double went = by_vdso(clocks[i]) - before[i], most = by_vdso(CLOCK_REALTIME) - wall + 1;
        CHECK(went >= 0 && went < most, "clock %d: expected to have gone on by 0 to %.3f s, saw %.3f",
              clocks[i], most, went);
    }
    check_due(timer, CLOCK_MONOTONIC, late);
    check_due(boot_timer, CLOCK_BOOTTIME, late_boot);
    check_child(before[0]);
    for (int i = 0; i < 2; i++) MUST(-pthread_join(threads[i], NULL));
    uint64_t ticks = 0;
    for (int tries = 0; tries < 500 && read(soon, &ticks, 8) != 8; tries++) usleep(20000);
    CHECK(ticks == 1, "timer of %d s: expected 1 tick, saw %lu", WAIT, ticks);
    pass();
}
