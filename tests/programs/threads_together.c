// A clone's first thread to run finds all others with the parent's ids and filters, and the process
// as open to others as it was: they share memory, so whoever had more would lend it to all. The
// threads have their filters in common there, too, unless these forbid threads to wait.
#include "filters.h"
#include <dirent.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#define MOST_THREADS 200
#define USER 65534

// The last is left out where threads may wait.
static const struct rule rules[] = {
    {SYS_sched_setattr, SECCOMP_RET_KILL_PROCESS}, {SYS_futex, ERRNO(EPERM)}
};
#define RULES 2
static const struct rule later[] = {{SYS_getsid, ERRNO(EDOM)}};
static int threads = MOST_THREADS;

static void *idle(void *unused) {
    for (;;) pause();
    return unused;
}

struct place {
    char name[64];
};

// The mount namespace, which each clone has for itself. Nothing is open meanwhile: what shows another
// thread cannot be carried.
static struct place here(void) {
    struct place place = {0};
    MUST(readlink("/proc/self/ns/mnt", place.name, sizeof place.name - 1));
    return place;
}

struct seen {
    int uid, filters;
};

static struct seen look_at(int tid) {
    char path[64], text[4096];
    struct seen seen = {-1, -1};
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    int fd = MUST(open(path, O_RDONLY));
    ssize_t got = MUST(read(fd, text, sizeof text - 1));
    close(fd);
    text[got] = 0;
    char *uid = strstr(text, "\nUid:"), *filters = strstr(text, "\nSeccomp_filters:");
    if (uid) seen.uid = atoi(uid + 5);
    if (filters) seen.filters = atoi(filters + 17);
    return seen;
}

static void check_all(void) {
    static int tids[MOST_THREADS + 1];
    int count = 0;
    CHECK(prctl(PR_GET_DUMPABLE) == 1, "dumpable: saw %d", prctl(PR_GET_DUMPABLE));
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks, "opendir: %s", strerror(errno));
    for (struct dirent *task; (task = readdir(tasks));)
        if (task->d_name[0] != '.' && count <= threads) tids[count++] = atoi(task->d_name);
    closedir(tasks);
    CHECK(count == threads + 1, "threads: saw %d", count);
    struct seen own = look_at(getpid());
    // The youngest is the last to be made.
    while (count--) {
        struct seen other = look_at(tids[count]);
        CHECK(other.uid == USER, "thread %d: saw uid %d", count, other.uid);
        CHECK(other.filters == own.filters, "thread %d: saw %d filters, expected %d", count,
              other.filters, own.filters);
    }
}

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE not root: no ids to change");
        pass();
    }
    MUST(setgroups(0, NULL));
    MUST(setresgid(USER, USER, USER));
    MUST(setresuid(USER, USER, USER));
    MUST(prctl(PR_SET_DUMPABLE, 1));
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    // Fewer threads: they wait for each other without a call, which takes as many turns as there are.
    int may_wait = !getenv("FORBIDS_FUTEX");
    if (!may_wait) threads = 20;
    MUST(install(rules, may_wait ? RULES - 1 : RULES, 0, 0));
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_t thread;
    for (int i = 0; i < threads; i++) CHECK(!pthread_create(&thread, &small, idle, NULL), "thread");
    CHECK(write(1, "READY\n", 6) == 6, "write: %s", strerror(errno));
    // A clone begins here, in the middle, and in another place.
    char byte;
    struct place last = here();
    for (unsigned turn = 1;; turn++) {
        struct place place = here();
        if (strcmp(place.name, last.name)) {
            check_all();
            CHECK(write(1, "CHECKED\n", 8) == 8, "write: %s", strerror(errno));
        }
        last = place;
        // Other clones' threads, which wait for each other as they start, need the processor, too.
        sched_yield();
        // A clone's input may be one to wait for, and it must not begin in a read of that.
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (turn % 64 == 0 && poll(&input, 1, 0) == 1 && read(0, &byte, 1) == 1) break;
    }
    check_all();
    if (may_wait) {
        long other = MUST(install(later, 1, 0, SECCOMP_FILTER_FLAG_TSYNC));
        CHECK(!other, "filters: thread %ld has others than this one", other);
        check_all();
    }
    pass();
}
