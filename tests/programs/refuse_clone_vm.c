// Another process, not a child, lives in the same memory.
#include "check.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

static volatile int is_over, has_gone;
static pid_t first;

static int live(void *unused) {
    (void)unused;
    // Our stdin and stdout would keep the driver's pipes open.
    for (int fd = 0; fd < 3; fd++) close(fd);
    struct timespec moment = {.tv_nsec = 1000000};
    while (!is_over && !kill(first, 0)) nanosleep(&moment, NULL);
    has_gone = 1;
    _exit(0);
}

int main(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    first = getpid();
    // Without a signal at its end nobody but the parent's parent is asked to wait for it.
    MUST(clone(live, stack + sizeof stack, CLONE_VM | CLONE_PARENT, NULL));
    ready_and_wait();
    is_over = 1;
    struct timespec moment = {.tv_nsec = 1000000};
    while (!has_gone) nanosleep(&moment, NULL);
    pass();
}
