// The main thread has ended with pthread_exit; another one carries the process on.
#include "check.h"
#include <pthread.h>

static void *carries_on(void *argument) {
    pthread_join(*(pthread_t *)argument, NULL);
    uint8_t *memory = filled(16 * PAGE, 1);
    ready_and_wait();
    CHECK_FILLED(memory, 16 * PAGE, 1);
    CHECK(getpid() != gettid(), "tid: expected one that is not the pid");
    pass();
}

int main(void) {
    static pthread_t self;
    self = pthread_self();
    pthread_t other;
    pthread_create(&other, NULL, carries_on, &self);
    pthread_exit(NULL);
}
