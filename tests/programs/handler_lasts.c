// SIGUSR1 interrupts its wait, and the handler waits itself until 'g' comes. On 'v' all is as it was before:
// what is called here has to return to where it came from, long after. SIGUSR2 has its wait return EINTR.
#include "check.h"
#include <signal.h>

static volatile int handled;

static char next(void) {
    char byte = 0;
    long got;
    while ((got = syscall(SYS_read, 0, &byte, 1)) < 0 && errno == EINTR)
        if (write(1, "EINTR\n", 6) != 6) _exit(3);
    CHECK(got == 1, "read of one byte from fd 0: expected 1, saw %ld (%s)", got, strerror(errno));
    return byte;
}

static void handle(int number) {
    (void)number;
    handled++;
    if (write(1, "IN\n", 3) != 3) _exit(3);
    char byte = next();
    CHECK(byte == 'g', "handler: expected 'g', saw '%c'", byte);
    if (write(1, "OUT\n", 4) != 4) _exit(3);
}

static void interrupt(int number) {
    (void)number;
}

static void check_mask(void) {
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    for (int number = 1; number < 65; number++)
        if (number != 32 && number != 33)
            CHECK(sigismember(&set, number) == (number == SIGURG), "signal %d is wrong", number);
}

int main(void) {
    sigset_t urgent;
    sigemptyset(&urgent);
    sigaddset(&urgent, SIGURG);
    sigprocmask(SIG_SETMASK, &urgent, NULL);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGUSR1, &action, NULL));
    struct sigaction plain = {.sa_handler = interrupt};
    MUST(sigaction(SIGUSR2, &plain, NULL));
    char command = ready_and_wait();
    while (command == 'v') {
        check_mask();
        if (write(1, "OK\n", 3) != 3) _exit(3);
        command = next();
    }
    pass();
}
