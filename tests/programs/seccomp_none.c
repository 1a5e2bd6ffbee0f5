// A program without a filter: ordinary calls must not be refused, no_new_privs must not appear,
// and it can still install a filter of its own.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static void ordinary_calls(void) {
    uint8_t *memory = filled(16 * PAGE, 1);
    MUST(mprotect(memory, PAGE, PROT_READ));
    MUST(raw_madvise(memory, PAGE, MADV_WILLNEED));
    MUST(raw_madvise(memory + PAGE, PAGE, MADV_COLD));
    MUST(raw_madvise(memory + PAGE, PAGE, MADV_PAGEOUT));
    MUST(raw_madvise(memory, 16 * PAGE, MADV_NOHUGEPAGE));
    MUST(raw_mremap(memory, 16 * PAGE, 8 * PAGE, 0, NULL));
    MUST(mlock(memory, PAGE));
    MUST(munlock(memory, PAGE));
    MUST(syscall(SYS_mincore, memory, PAGE, (uint8_t[1]){0}));
    MUST(munmap(memory, 8 * PAGE));
    MUST(setpriority(PRIO_PROCESS, 0, 1));
    MUST(sched_yield());
    MUST(memfd_create("ordinary", 0));
}

// Refuses getppid with ENOTTY.
static void own_filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    REFUSED(syscall(SYS_getppid), ENOTTY);
    CHECK(getpid() > 0, "getpid: expected to pass the filter");
}

int main(void) {
    uint8_t *memory = filled(16 * PAGE, 1);
    ready_and_wait();
    note("seccomp mode %d", prctl(PR_GET_SECCOMP));
    int privileges = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    CHECK(privileges == 0, "no_new_privs: expected 0, saw %d", privileges);
    CHECK_FILLED(memory, 16 * PAGE, 1);
    ordinary_calls();
    own_filter();
    pass();
}
