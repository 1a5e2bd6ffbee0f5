// What makes it harder to take a process over, and harder for it to watch others.
#include "check.h"
#include <linux/prctl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
#define GET_CPUID 0x1011
#define SET_CPUID 0x1012

struct state {
    int speculation[3], tsc, cpuid, memory_failure;
};

static pthread_barrier_t gate;

static struct state state(void) {
    struct state now = {.tsc = -1};
    for (int i = 0; i < 3; i++) now.speculation[i] = prctl(PR_GET_SPECULATION_CTRL, i, 0, 0, 0);
    MUST(prctl(PR_GET_TSC, &now.tsc));
    now.cpuid = (int)syscall(SYS_arch_prctl, GET_CPUID, 0);
    now.memory_failure = MUST(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
    return now;
}

static void check_state(const char *who, const struct state *expected) {
    struct state now = state();
    for (int i = 0; i < 3; i++)
        CHECK(now.speculation[i] == expected->speculation[i], "%s: speculation %d: expected %#x, saw %#x",
              who, i, expected->speculation[i], now.speculation[i]);
    CHECK(now.tsc == expected->tsc, "%s: TSC: expected %d, saw %d", who, expected->tsc, now.tsc);
    CHECK(now.cpuid == expected->cpuid, "%s: cpuid: expected %d, saw %d", who, expected->cpuid, now.cpuid);
    CHECK(now.memory_failure == expected->memory_failure, "%s: memory failure: expected %d, saw %d", who,
          expected->memory_failure, now.memory_failure);
}

static void *hardened(void *unused) {
    // Not every processor can do all of these; what it can is kept.
    prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
    prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_FORCE_DISABLE, 0, 0);
    syscall(SYS_arch_prctl, SET_CPUID, 0);
    MUST(prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
    MUST(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0));
    struct state own = state();
    CHECK(own.tsc == PR_TSC_SIGSEGV && own.memory_failure == PR_MCE_KILL_EARLY, "expected them set");
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    check_state("hardened thread", &own);
    syscall(SYS_arch_prctl, SET_CPUID, 1); // the end of a thread may need it
    return unused;
}

int main(void) {
    pthread_t thread;
    pthread_barrier_init(&gate, NULL, 2);
    struct state own = state();
    pthread_create(&thread, NULL, hardened, NULL);
    pthread_barrier_wait(&gate);
    uint8_t *memory = anonymous(PAGE);
    int refuses = !prctl(PR_SET_MDWE, 1, 0, 0, 0);
    ready_and_wait();
    check_state("first thread", &own);
    CHECK(!refuses || prctl(PR_GET_MDWE, 0, 0, 0, 0) == 1, "MDWE: saw %d", prctl(PR_GET_MDWE, 0, 0, 0, 0));
    if (refuses) REFUSED(mprotect(memory, PAGE, PROT_READ | PROT_EXEC), EACCES);
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    pass();
}
