// Thread-local values, errno, identities and locks that are held across the checkpoint.
#include "check.h"
#include <pthread.h>

#define THREADS 4

static __thread uint64_t local;
static __thread uint8_t large_local[10000];
static pthread_barrier_t built, go_on;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, recursive, robust;
static pthread_mutex_t waiting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int predicate, woken;

static void make_mutexes(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &attributes);
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&robust, &attributes);
}

static void *holder(void *argument) {
    unsigned seed = (uintptr_t)argument;
    local = seed * 1000003UL;
    fill(large_local, sizeof large_local, seed);
    pthread_t self = pthread_self();
    pid_t tid = gettid();
    if (seed == 1) {
        pthread_mutex_lock(&recursive);
        pthread_mutex_lock(&recursive);
        pthread_mutex_lock(&robust);
    }
    errno = 1000 + seed;
    pthread_barrier_wait(&built);
    pthread_barrier_wait(&go_on);
    CHECK(errno == (int)(1000 + seed), "errno: expected %d, saw %d", 1000 + seed, errno);
    CHECK(local == seed * 1000003UL, "thread-local: expected %lu, saw %lu", seed * 1000003UL, local);
    CHECK_FILLED(large_local, sizeof large_local, seed);
    CHECK(pthread_equal(self, pthread_self()), "pthread_self: expected the same, saw another");
    CHECK(tid == gettid(), "gettid: expected %d as before, saw %d", tid, gettid());
    if (seed == 1) {
        // These compare the owner that glibc cached with the caller's tid.
        CHECK(!pthread_mutex_unlock(&recursive), "recursive unlock");
        CHECK(!pthread_mutex_unlock(&recursive), "recursive unlock, again");
        CHECK(pthread_mutex_unlock(&recursive), "recursive unlock: expected EPERM after the last");
        CHECK(pthread_mutex_lock(&robust) == EDEADLK, "robust lock: expected EDEADLK");
        CHECK(!pthread_mutex_unlock(&robust), "robust unlock");
    }
    return NULL;
}

static void *waiter(void *argument) {
    (void)argument;
    pthread_mutex_lock(&waiting);
    while (!predicate) pthread_cond_wait(&condition, &waiting);
    woken++;
    pthread_mutex_unlock(&waiting);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS], waiters[2];
    make_mutexes();
    pthread_barrier_init(&built, NULL, THREADS + 1);
    pthread_barrier_init(&go_on, NULL, THREADS + 1);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, holder, (void *)(i + 1));
    for (int i = 0; i < 2; i++) pthread_create(&waiters[i], NULL, waiter, NULL);
    pthread_mutex_lock(&held);
    local = 77;
    pid_t tid = gettid(), pid = getpid();
    pthread_barrier_wait(&built);
    ready_and_wait();
    CHECK(getpid() == pid && gettid() == tid, "pid and tid: expected %d %d, saw %d %d", pid, tid,
          getpid(), gettid());
    CHECK(local == 77, "thread-local of main: expected 77, saw %lu", local);
    CHECK(pthread_mutex_trylock(&held) == EBUSY, "held mutex: expected EBUSY");
    CHECK(!pthread_mutex_unlock(&held), "held mutex: expected to unlock");
    pthread_barrier_wait(&go_on);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_mutex_lock(&waiting);
    predicate = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&waiting);
    for (int i = 0; i < 2; i++) pthread_join(waiters[i], NULL);
    CHECK(woken == 2, "condition: expected 2 woken, saw %d", woken);
    pass();
}
