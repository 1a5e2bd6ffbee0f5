// A program's own filters come along, in their order, each thread's for itself, and are the last
// thing that a clone puts on: these kill for what restoring takes.
#include "filters.h"
#include <pthread.h>
#include <signal.h>

static pthread_barrier_t gate;

static const struct rule deadly[] = {
    {SYS_capset, SECCOMP_RET_KILL_PROCESS},    {SYS_sched_setattr, SECCOMP_RET_KILL_PROCESS},
    {SYS_sendto, SECCOMP_RET_KILL_PROCESS},    {SYS_close_range, SECCOMP_RET_KILL_PROCESS},
    {SYS_setresuid, SECCOMP_RET_KILL_PROCESS}, {SYS_rt_sigqueueinfo, SECCOMP_RET_KILL_PROCESS},
    {SYS_sigaltstack, SECCOMP_RET_KILL_PROCESS}, {SYS_getpgid, ERRNO(ENOTTY)},
    {SYS_getppid, ERRNO(EXDEV)},
};
static const struct rule later[] = {{SYS_getpgid, ERRNO(ENOSPC)}};
static const struct rule others[] = {{SYS_getsid, ERRNO(EDOM)}};

static void *other(void *unused) {
    MUST(install(others, 1, 0, 0));
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    REFUSED(syscall(SYS_getsid, 0), EDOM);
    REFUSED(syscall(SYS_getpgid, 0), ENOTTY);
    return unused;
}

static int filters(void) {
    char line[256];
    int count = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "Seccomp_filters: %d", &count);
    fclose(status);
    return count;
}

int main(void) {
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(install(deadly, sizeof deadly / sizeof *deadly, 0, SECCOMP_FILTER_FLAG_LOG));
    pthread_t thread;
    pthread_barrier_init(&gate, NULL, 2);
    pthread_create(&thread, NULL, other, NULL);
    pthread_barrier_wait(&gate);
    MUST(install(later, 1, 1, 0));
    uint8_t *memory = filled(4 * PAGE, 1);
    ready_and_wait();
    // Of two that refuse alike, the younger one is heard.
    REFUSED(syscall(SYS_getpgid, 0), ENOSPC);
    REFUSED(syscall(SYS_getppid), EXDEV);
    MUST(syscall(SYS_getsid, 0));
    CHECK(filters() == 2 || filters() == 3, "filters: saw %d", filters());
    DONTNEED(memory, PAGE);
    CHECK_ZEROS(memory, PAGE);
    CHECK_FILLED_FROM(memory + PAGE, PAGE, 1, PAGE);
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    pid_t child = MUST(fork());
    if (!child) {
        syscall(SYS_close_range, 1000, 1001, 0);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "child: expected SIGSYS, saw %#x", status);
    pass();
}
