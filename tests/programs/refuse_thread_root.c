// A thread that has left the others' root directory for one of its own.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>

static pthread_barrier_t gate;

static void *confined(void *unused) {
    MUST(unshare(CLONE_FS));
    mkdir("root", 0755);
    MUST(chroot("root"));
    MUST(chdir("/"));
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    REFUSED(access("/etc", F_OK), ENOENT);
    return unused;
}

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE chroot needs root");
        pass();
    }
    pthread_t thread;
    pthread_barrier_init(&gate, NULL, 2);
    pthread_create(&thread, NULL, confined, NULL);
    pthread_barrier_wait(&gate);
    ready_and_wait();
    CHECK(!access("/etc", F_OK), "expected the node's root directory");
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    pass();
}
