// What prctl sets, per thread and per process.
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

static pthread_barrier_t gate;

static void check_name(const char *expected) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    CHECK(!strcmp(name, expected), "comm: expected %s, saw %s", expected, name);
}

static void check_value(const char *what, long seen, long expected) {
    CHECK(seen == expected, "%s: expected %ld, saw %ld", what, expected, seen);
}

static void *named(void *unused) {
    prctl(PR_SET_NAME, "second one");
    prctl(PR_SET_TIMERSLACK, 123456UL);
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    check_name("second one");
    check_value("timer slack of the thread", prctl(PR_GET_TIMERSLACK), 123456);
    check_value("no_new_privs of the thread", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 0);
    return unused;
}

int main(void) {
    pthread_t thread;
    pthread_barrier_init(&gate, NULL, 2);
    prctl(PR_SET_NAME, "first (one) x");
    prctl(PR_SET_TIMERSLACK, 654321UL);
    pthread_create(&thread, NULL, named, NULL);
    pthread_barrier_wait(&gate);
    MUST(prctl(PR_SET_DUMPABLE, 0));
    MUST(prctl(PR_SET_KEEPCAPS, 1));
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_PDEATHSIG, SIGUSR1));
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
    MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    signal(SIGUSR1, SIG_IGN);
    ready_and_wait();
    check_name("first (one) x");
    check_value("dumpable", prctl(PR_GET_DUMPABLE), 0);
    check_value("keepcaps", prctl(PR_GET_KEEPCAPS), 1);
    check_value("no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
    check_value("timer slack", prctl(PR_GET_TIMERSLACK), 654321);
    check_value("THP disabled", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
    int number = 0, reaper = 0;
    MUST(prctl(PR_GET_PDEATHSIG, &number));
    check_value("parent death signal", number, SIGUSR1);
    MUST(prctl(PR_GET_CHILD_SUBREAPER, &reaper));
    check_value("child subreaper", reaper, 1);
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    pass();
}
