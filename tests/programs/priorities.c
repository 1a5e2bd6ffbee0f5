// Nice values, policies, I/O priorities, and what the kernel does when memory runs out or is dumped.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

static pthread_barrier_t gate;

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

struct life {
    int policy, priority, nice, io;
    uint64_t flags;
};

static void check_life(const struct life *life) {
    struct attributes seen = {0};
    MUST(syscall(SYS_sched_getattr, 0, &seen, sizeof seen, 0));
    CHECK(seen.policy == (uint32_t)life->policy && seen.priority == (uint32_t)life->priority &&
              seen.nice == life->nice && seen.flags == life->flags,
          "scheduling: expected %d %d %d %lx, saw %u %u %d %lx", life->policy, life->priority,
          life->nice, life->flags, seen.policy, seen.priority, seen.nice, seen.flags);
    int io = MUST(syscall(SYS_ioprio_get, 1, 0));
    CHECK(io == life->io, "I/O priority: expected %#x, saw %#x", life->io, io);
}

static void *live(void *given) {
    const struct life *life = given;
    struct attributes set = {sizeof set, life->policy, life->flags, life->nice, life->priority, 0, 0, 0};
    MUST(syscall(SYS_sched_setattr, 0, &set, 0));
    if (life->io) MUST(syscall(SYS_ioprio_set, 1, 0, life->io));
    check_life(life);
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    check_life(life);
    return NULL;
}

static void put(const char *file, const char *text) {
    int fd = MUST(open(file, O_WRONLY));
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s: %s", file, strerror(errno));
    close(fd);
}

static void check_file(const char *file, const char *expected) {
    char seen[64] = "";
    int fd = MUST(open(file, O_RDONLY));
    CHECK(read(fd, seen, sizeof seen - 1) > 0, "%s: %s", file, strerror(errno));
    close(fd);
    CHECK(!strcmp(seen, expected), "%s: expected %s, saw %s", file, expected, seen);
}

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE priorities that only root may set");
        ready_and_wait();
        pass();
    }
    static const struct life lives[] = {
        {SCHED_OTHER, 0, 0, 0, 0},
        {SCHED_OTHER, 0, -7, 2 << 13 | 6, 0},
        {SCHED_BATCH, 0, 5, 0, 0},
        {SCHED_IDLE, 0, 0, 3 << 13, 0},
        {SCHED_FIFO, 3, 0, 1 << 13 | 2, 1},
    };
    enum { LIVES = sizeof lives / sizeof *lives };
    pthread_t threads[LIVES];
    pthread_barrier_init(&gate, NULL, LIVES + 1);
    for (int i = 0; i < LIVES; i++) pthread_create(&threads[i], NULL, live, (void *)&lives[i]);
    pthread_barrier_wait(&gate);
    MUST(setpriority(PRIO_PROCESS, 0, 4));
    put("/proc/self/oom_score_adj", "321");
    put("/proc/self/coredump_filter", "0x7f");
    struct rlimit limit = {77, 99};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    ready_and_wait();
    CHECK(getpriority(PRIO_PROCESS, 0) == 4, "nice: saw %d", getpriority(PRIO_PROCESS, 0));
    check_file("/proc/self/oom_score_adj", "321\n");
    check_file("/proc/self/coredump_filter", "0000007f\n");
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(limit.rlim_cur == 77 && limit.rlim_max == 99, "limit: saw %lu %lu", limit.rlim_cur, limit.rlim_max);
    pthread_barrier_wait(&gate);
    for (int i = 0; i < LIVES; i++) pthread_join(threads[i], NULL);
    pass();
}
