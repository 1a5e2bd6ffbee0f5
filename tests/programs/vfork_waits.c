// On 'v' it waits in vfork for a child that has to be killed, while another thread counts on.
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

static volatile unsigned long rounds;

static void pause_ms(long ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void *count(void *unused) {
    for (;; rounds++) pause_ms(1);
    return unused;
}

static void wait_in_vfork(void) {
    pid_t child = vfork();
    if (!child) {
        pause_ms(60000);
        _exit(0);
    }
    MUST(child);
    MUST(waitpid(child, NULL, 0));
    unsigned long before = rounds;
    pause_ms(200);
    CHECK(rounds > before, "the other thread stands still");
    char byte;
    MUST(read(0, &byte, 1));
}

int main(void) {
    pthread_t counter;
    CHECK(!pthread_create(&counter, NULL, count, NULL), "thread");
    if (ready_and_wait() == 'v') wait_in_vfork();
    pass();
}
