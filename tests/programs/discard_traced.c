// A thread that has a tracer discards memory: nobody else can hold it, and it gets what it asks for.
#include "file_map.h"
#include <sys/ptrace.h>
#include <signal.h>

#define BYTES (32 * PAGE)

static uint8_t *memory, *file, *locked;

static void traced(void) {
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
    raise(SIGSTOP);
    DONTNEED(memory, 100); // a whole page
    CHECK_ZEROS(memory, PAGE);
    DONTNEED(memory + 4 * PAGE, 2 * PAGE + 1);
    CHECK_ZEROS(memory + 4 * PAGE, 3 * PAGE);
    MUST(raw_madvise(memory + 8 * PAGE, PAGE, MADV_FREE));
    REFUSED(raw_madvise(memory + 1, PAGE, MADV_DONTNEED), EINVAL);
    REFUSED(raw_madvise(memory + 16 * PAGE, PAGE, MADV_REMOVE), EINVAL);
    CHECK_FILLED_FROM(memory + 9 * PAGE, BYTES - 9 * PAGE, 1, 9 * PAGE);
    CHECK_FILLED_FROM(memory + PAGE, 3 * PAGE, 1, PAGE);
    DONTNEED(file + PAGE, 2 * PAGE);
    CHECK_FILLED(file, PAGE, 3);
    CHECK_FILLED_FROM(file + PAGE, 2 * PAGE, 2, PAGE);
    CHECK_FILLED_FROM(file + 3 * PAGE, PAGE, 3, 3 * PAGE);
    MUST(munmap(memory + 20 * PAGE, PAGE));
    REFUSED(raw_madvise(memory + 19 * PAGE, 3 * PAGE, MADV_DONTNEED), ENOMEM);
    CHECK_ZEROS(memory + 19 * PAGE, PAGE);
    CHECK_ZEROS(memory + 21 * PAGE, PAGE);
    // A hole alone: the kernel says so, too.
    REFUSED(raw_madvise(memory + 20 * PAGE, PAGE, MADV_DONTNEED), ENOMEM);
    MUST(mlock(locked, BYTES));
    REFUSED(raw_madvise(locked, PAGE, MADV_DONTNEED), EINVAL);
    CHECK_FILLED(locked, BYTES, 4);
    uint8_t *grown = raw_mremap(memory + 24 * PAGE, 8 * PAGE, 64 * PAGE, MREMAP_MAYMOVE, NULL);
    if (grown == MAP_FAILED)
        CHECK(errno == ENOMEM, "mremap: expected ENOMEM if anything, saw %s", strerror(errno));
    else
        CHECK_ZEROS(grown + 8 * PAGE, 56 * PAGE);
    CHECK_FILLED_FROM(grown == MAP_FAILED ? memory + 24 * PAGE : grown, 8 * PAGE, 1, 24 * PAGE);
    _exit(0);
}

int main(void) {
    memory = filled(BYTES, 1);
    anonymous(PAGE);
    locked = filled(BYTES, 4);
    int fd = file_with("mapped", BYTES, 2);
    file = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    close(fd);
    fill(file, BYTES, 3);
    ready_and_wait();
    pid_t child = MUST(fork());
    if (!child) traced();
    for (;;) {
        int status;
        MUST(waitpid(child, &status, 0));
        if (!WIFSTOPPED(status)) {
            CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "child: wait status %#x", status);
            break;
        }
        int signal = WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
        MUST(ptrace(PTRACE_CONT, child, 0, signal));
    }
    CHECK_FILLED(memory, BYTES, 1);
    CHECK_FILLED(file, BYTES, 3);
    pass();
}
