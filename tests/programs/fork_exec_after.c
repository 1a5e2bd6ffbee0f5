// Children of a clone execute other programs, and this one again, which lives on fresh memory.
#include "check.h"

static void fresh_program(void) {
    uint8_t *memory = filled(64 * PAGE, 7);
    DONTNEED(memory + PAGE, 8 * PAGE);
    CHECK_FILLED(memory, PAGE, 7);
    CHECK_ZEROS(memory + PAGE, 8 * PAGE);
    uint8_t *grown = raw_mremap(memory, 64 * PAGE, 256 * PAGE, MREMAP_MAYMOVE, NULL);
    CHECK(grown != MAP_FAILED, "mremap after exec: %s", strerror(errno));
    CHECK_ZEROS(grown + 64 * PAGE, 192 * PAGE);
    _exit(0);
}

static void run(const char *path, char *const argv[]) {
    pid_t child = MUST(fork());
    if (!child) {
        execv(path, argv);
        FAIL("execv of %s: %s", path, strerror(errno));
    }
    reap(child);
}

int main(int argc, char **argv) {
    if (argc > 1) fresh_program();
    uint8_t *memory = filled(64 * PAGE, 1);
    ready_and_wait();
    run("/bin/true", (char *[]){"true", NULL});
    run("/proc/self/exe", (char *[]){argv[0], "fresh", NULL});
    CHECK(system("exit 0") == 0, "system(): expected status 0");
    CHECK_FILLED(memory, 64 * PAGE, 1);
    pass();
}
