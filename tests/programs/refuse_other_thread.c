// A file of /proc about another thread, or a working directory there: a clone opens files before it
// has other threads. What is about the first thread is there from the beginning.
#include "check.h"
#include <pthread.h>

static pid_t tid;
static pthread_barrier_t gate;

static void *idle(void *unused) {
    tid = (pid_t)syscall(SYS_gettid);
    pthread_barrier_wait(&gate);
    for (;;) pause();
    return unused;
}

int main(void) {
    char path[64];
    pthread_t thread;
    pthread_barrier_init(&gate, NULL, 2);
    CHECK(!pthread_create(&thread, NULL, idle, NULL), "pthread_create failed");
    pthread_barrier_wait(&gate);
    snprintf(path, sizeof path, "/proc/self/task/%d", getenv("OWN") ? getpid() : tid);
    if (getenv("CWD")) {
        MUST(chdir(path));
    } else {
        strcat(path, "/status");
        int fd = MUST(open(path, O_RDONLY));
        CHECK(fd == 3, "open: expected 3, saw %d", fd);
    }
    ready_and_wait();
    pass();
}
