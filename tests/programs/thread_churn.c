// Threads that come and go all the time, until a byte comes.
#include "check.h"
#include <pthread.h>

#define AT_ONCE 4

static volatile int is_over;

static void *nothing(void *unused) { return unused; }

static void *churn(void *unused) {
    while (!is_over) {
        pthread_t threads[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) CHECK(!pthread_create(&threads[i], NULL, nothing, NULL), "thread");
        for (int i = 0; i < AT_ONCE; i++) pthread_join(threads[i], NULL);
    }
    return unused;
}

int main(void) {
    pthread_t churner;
    CHECK(!pthread_create(&churner, NULL, churn, NULL), "thread");
    ready_and_wait();
    is_over = 1;
    pthread_join(churner, NULL);
    pass();
}
