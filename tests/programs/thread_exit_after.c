// Threads end and are joined, new ones come; glibc gives their stacks back with madvise while
// all signals are blocked, and hands the same stacks out again.
#include "check.h"
#include <pthread.h>

#define THREADS 12

static pthread_barrier_t gate;

__attribute__((noinline)) static void use_stack(unsigned seed) {
    uint8_t frame[200 * 1024];
    fill(frame, sizeof frame, seed);
    CHECK_FILLED(frame, sizeof frame, seed);
}

static void *waits(void *argument) {
    use_stack((uintptr_t)argument);
    pthread_barrier_wait(&gate);
    use_stack((uintptr_t)argument + 1);
    return argument;
}

static void *runs(void *argument) {
    use_stack((uintptr_t)argument);
    return argument;
}

static void join(pthread_t thread, uintptr_t expected) {
    void *result;
    int error = pthread_join(thread, &result);
    CHECK(!error && (uintptr_t)result == expected, "join: expected %lu, saw %lu (error %d)",
          expected, (uintptr_t)result, error);
}

int main(void) {
    pthread_t old[THREADS], young[THREADS], early;
    pthread_barrier_init(&gate, NULL, THREADS + 1);
    pthread_create(&early, NULL, runs, (void *)99);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&old[i], NULL, waits, (void *)i);
    usleep(20000); // `early` has ended by now and is not joined yet
    ready_and_wait();
    join(early, 99);
    pthread_barrier_wait(&gate);
    for (uintptr_t i = 0; i < THREADS; i++) join(old[i], i);
    for (int round = 0; round < 5; round++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&young[i], NULL, runs, (void *)i), "pthread_create");
        for (uintptr_t i = 0; i < THREADS; i++) join(young[i], i);
    }
    pass();
}
