// Signals that stop a process arrive while it discards memory: every call is performed, and every
// stop takes effect.
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#define BYTES (32 * MIB)
#define STEP (4 * PAGE)

enum { LEAST_STOPS = 12 };

// The child waits for the parent where that gets no processor: so that it is stopped often enough.
static void discard_all(uint8_t *memory, const volatile size_t *stops) {
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
    for (size_t at = 0; at < BYTES; at += STEP) {
        while (at > BYTES / LEAST_STOPS * (*stops + 1)) sched_yield();
        DONTNEED(memory + at, 2 * PAGE);
        CHECK_ZEROS(memory + at, 2 * PAGE);
        CHECK_FILLED_FROM(memory + at + 2 * PAGE, 2 * PAGE, 1, at + 2 * PAGE);
    }
    _exit(0);
}

// What the child does next of what `options` ask for; it has five seconds to do so.
static int next_of(pid_t child, int options, const char *wanted) {
    for (int tries = 0; tries < 50000; tries++) {
        int status;
        pid_t got = MUST(waitpid(child, &status, options | WNOHANG));
        if (got == child) return status;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    FAIL("child %d: expected it to have %s after five seconds", child, wanted);
}

static int ended(int status) {
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) return 0;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "child: expected exit status 0, saw wait status %#x", status);
    return 1;
}

int main(void) {
    uint8_t *memory = filled(BYTES, 1);
    ready_and_wait();
    volatile size_t *stops =
        mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(stops != MAP_FAILED, "mmap: %s", strerror(errno));
    pid_t child = MUST(fork());
    if (!child) discard_all(memory, stops);
    for (;; ++*stops) {
        nanosleep(&(struct timespec){.tv_nsec = 30000 + *stops % 7 * 10000}, NULL);
        MUST(kill(child, SIGSTOP));
        int status = next_of(child, WUNTRACED, "stopped");
        if (ended(status)) break;
        CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP,
              "child: expected a stop by SIGSTOP, saw wait status %#x", status);
        MUST(kill(child, SIGCONT));
        if (ended(next_of(child, WCONTINUED, "gone on"))) break;
    }
    CHECK_FILLED(memory, BYTES, 1);
    pass();
}
