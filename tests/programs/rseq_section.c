// A thread that is nearly always inside a restartable sequence: one that it was stopped in must
// not be finished afterwards, in the parent as little as in a clone, but be aborted.
#include "check.h"
#include <pthread.h>
#include <signal.h>

#define SIGNATURE 0x53053053

struct __attribute__((aligned(32))) area {
    uint32_t cpu_start, cpu;
    uint64_t section;
    uint32_t flags, node, concurrency, unused;
};

// Sequences are begun, and end by being aborted: each takes steps without end before it would be
// committed.
static volatile uint64_t begun, committed, aborted;
static volatile int is_stopping;

static void sequence(struct area *area) {
    begun++;
    __asm__ volatile(
        ".pushsection __rseq_cs, \"aw\"\n"
        ".balign 32\n"
        "3: .long 0, 0\n"
        ".quad 1f, 2f - 1f, 4f\n"
        ".popsection\n"
        "leaq 3b(%%rip), %%rax\n"
        "movq %%rax, %[section]\n"
        "1:\n"
        "5: decq %%rax\n"
        "cmpq %%rax, %%rax\n"
        "je 5b\n"
        "incq %[committed]\n"
        "2:\n"
        "jmp 6f\n"
        ".long 0x53053053\n"
        "4: incq %[aborted]\n"
        "6:\n"
        : [committed] "+m"(committed), [aborted] "+m"(aborted), [section] "=m"(area->section)
        :
        : "rax", "memory", "cc");
}

static void *worker(void *unused) {
    static __thread struct area area;
    long failed = syscall(SYS_rseq, &area, sizeof area, 0, SIGNATURE);
    CHECK(!failed, "rseq: expected 0, saw %ld (%s)", failed, strerror(errno));
    while (!is_stopping) {
        sequence(&area);
        CHECK(!committed && aborted == begun, "of %lu sequences: expected all aborted, saw %lu, and "
              "%lu committed", begun, aborted, committed);
    }
    return unused;
}

static void ignore(int signal) { (void)signal; }

// A signal aborts the sequence that it arrives in, as long as the kernel knows of that.
static int joined(pthread_t other) {
    for (int tries = 0; tries < 5000; tries++) {
        if (!pthread_tryjoin_np(other, NULL)) return 1;
        pthread_kill(other, SIGUSR1);
        usleep(1000);
    }
    return 0;
}

int main(void) {
    pthread_t other;
    signal(SIGUSR1, ignore);
    CHECK(!pthread_create(&other, NULL, worker, NULL), "pthread_create");
    while (!begun) usleep(1000);
    usleep(1000);
    ready_and_wait();
    is_stopping = 1;
    CHECK(joined(other), "expected the sequence to be aborted, saw it go on: %lu of %lu aborted",
          aborted, begun);
    pass();
}
