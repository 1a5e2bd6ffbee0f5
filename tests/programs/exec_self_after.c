// A clone executes another image itself, with its pipes and pid.
#include "check.h"

int main(int argc, char **argv) {
    if (argc > 1) {
        CHECK(atoi(argv[1]) == getpid(), "pid: expected %s, saw %d", argv[1], getpid());
        uint8_t *memory = filled(64 * PAGE, 7);
        DONTNEED(memory, 64 * PAGE);
        CHECK_ZEROS(memory, 64 * PAGE);
        free(malloc(MIB));
        pass();
    }
    uint8_t *memory = filled(64 * PAGE, 1);
    ready_and_wait();
    CHECK_FILLED(memory, 64 * PAGE, 1);
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    execv("/proc/self/exe", (char *[]){argv[0], pid, NULL});
    FAIL("execv: %s", strerror(errno));
}
