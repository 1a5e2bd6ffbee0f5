// process_madvise on oneself reaches MADV_DONTNEED past a filter on madvise. Kernels before 6.13
// refuse it: then the clone has to see the same refusal.
#include "check.h"
#include <sys/uio.h>

static int errno_of(int pidfd, struct iovec *ranges, size_t count, int advice) {
    ssize_t got = syscall(SYS_process_madvise, pidfd, ranges, count, advice, 0);
    return got < 0 ? errno : 0;
}

static int self(void) { return MUST(syscall(SYS_pidfd_open, getpid(), 0)); }

int main(void) {
    uint8_t *scratch = filled(2 * PAGE, 1);
    struct iovec try = {scratch, 2 * PAGE};
    int pidfd = self();
    int before = errno_of(pidfd, &try, 1, MADV_DONTNEED);
    close(pidfd);
    uint8_t *memory = filled(32 * PAGE, 2);
    ready_and_wait();
    struct iovec ranges[] = {{memory + 2 * PAGE, 2 * PAGE}, {memory + 10 * PAGE, 5 * PAGE}};
    int after = errno_of(self(), ranges, 2, MADV_DONTNEED);
    CHECK(before == after, "process_madvise: expected errno %d, saw %d", before, after);
    note("process_madvise(self, DONTNEED): errno %d", after);
    CHECK_FILLED(memory, 2 * PAGE, 2);
    if (!after) {
        CHECK_ZEROS(memory + 2 * PAGE, 2 * PAGE);
        CHECK_ZEROS(memory + 10 * PAGE, 5 * PAGE);
    }
    CHECK_FILLED_FROM(memory + 15 * PAGE, 17 * PAGE, 2, 15 * PAGE);
    pass();
}
