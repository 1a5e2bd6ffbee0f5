// glibc registers rseq for every thread: it has to be registered again, with a valid cpu.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/rseq.h>

static pthread_barrier_t gate;

static volatile struct rseq *area(void) {
    return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

static void check_rseq(const char *who) {
    cpu_set_t one;
    for (int cpu = 0; cpu < 2; cpu++) {
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one)) continue;
        CHECK(sched_getcpu() == cpu, "%s: sched_getcpu: expected %d, saw %d", who, cpu, sched_getcpu());
        // Only a registered area is written by the kernel.
        CHECK(area()->cpu_id == (unsigned)cpu, "%s: rseq cpu_id: expected %d, saw %u", who, cpu,
              area()->cpu_id);
    }
    CHECK(area()->rseq_cs == 0, "%s: rseq_cs: expected 0, saw %#llx", who,
          (unsigned long long)area()->rseq_cs);
    long again = syscall(SYS_rseq, area(), 32, 0, RSEQ_SIG);
    CHECK(again == -1 && errno == EBUSY, "%s: registering again: expected EBUSY, saw %ld (%s)", who,
          again, strerror(errno));
}

static void *thread(void *unused) {
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    check_rseq("thread");
    return unused;
}

int main(void) {
    pthread_t other;
    pthread_barrier_init(&gate, NULL, 2);
    pthread_create(&other, NULL, thread, NULL);
    pthread_barrier_wait(&gate);
    int registered = __rseq_size && (int)area()->cpu_id >= 0;
    ready_and_wait();
    if (!registered) {
        note("no rseq here");
        pass();
    }
    check_rseq("main");
    pthread_barrier_wait(&gate);
    pthread_join(other, NULL);
    CHECK(!pthread_create(&other, NULL, thread, NULL), "pthread_create");
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    pthread_join(other, NULL);
    pass();
}
