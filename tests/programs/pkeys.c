// Protection keys: which are allocated, which memory has them, and what each thread may do with it.
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static volatile int code, key_seen;
static pthread_barrier_t gate;
static int first, second, third;
static uint8_t *guarded, *constant, *code_only;

static void fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    code = info->si_code;
    key_seen = info->si_code == SEGV_PKUERR ? (int)info->si_pkey : -1;
    siglongjmp(back, 1);
}

static unsigned rights(void) {
    unsigned low, high;
    __asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

// A handler runs with the default rights, and a jump out of it keeps them.
static int faults(volatile uint8_t *at, int is_write) {
    volatile unsigned before = rights();
    code = 0;
    if (sigsetjmp(back, 1)) {
        __asm__ volatile("wrpkru" ::"a"(before), "c"(0), "d"(0));
        return 1;
    }
    if (is_write) *at = *at;
    else (void)*at;
    return 0;
}

static void *other(void *unused) {
    pkey_set(first, 0);
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    CHECK(!faults(guarded, 1), "other thread: expected to write");
    return unused;
}

int main(void) {
    first = pkey_alloc(0, 0);
    if (first < 0) {
        note("UNAVAILABLE protection keys: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL));
    second = MUST(pkey_alloc(0, 0));
    third = MUST(pkey_alloc(0, PKEY_DISABLE_ACCESS));
    MUST(pkey_free(second));
    guarded = filled(600 * PAGE, 1);
    constant = filled(2 * PAGE, 2);
    code_only = filled(PAGE, 3);
    MUST(pkey_mprotect(guarded, 600 * PAGE, PROT_READ | PROT_WRITE, first));
    MUST(pkey_mprotect(constant, 2 * PAGE, PROT_READ, third));
    MUST(mprotect(code_only, PAGE, PROT_EXEC));
    pthread_t thread;
    pthread_barrier_init(&gate, NULL, 2);
    pthread_create(&thread, NULL, other, NULL);
    pthread_barrier_wait(&gate);
    pkey_set(first, PKEY_DISABLE_WRITE);
    ready_and_wait();
    CHECK(pkey_get(first) == PKEY_DISABLE_WRITE && pkey_get(third) == PKEY_DISABLE_ACCESS, "PKRU: wrong");
    CHECK_FILLED(guarded, 600 * PAGE, 1);
    CHECK(faults(guarded, 1) && key_seen == first, "write: expected key %d, saw %d", first, key_seen);
    CHECK(faults(constant, 0) && key_seen == third, "read: expected key %d, saw %d", third, key_seen);
    pkey_set(third, 0);
    CHECK_FILLED(constant, 2 * PAGE, 2);
    CHECK(faults(code_only, 0), "memory for execution only: expected no read");
    DONTNEED(guarded, PAGE);
    CHECK_ZEROS(guarded, PAGE);
    CHECK(faults(guarded, 1) && key_seen == first, "after discarding: expected key %d, saw %d", first, key_seen);
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    int next = MUST(pkey_alloc(0, 0));
    CHECK(next != first && next != third, "allocation: expected a free key, saw %d", next);
    MUST(pkey_free(third));
    REFUSED(pkey_mprotect(code_only, PAGE, PROT_READ, third), EINVAL);
    pass();
}
