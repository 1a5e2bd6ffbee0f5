// A thread that dies with a robust mutex: the kernel walks its list, so it has to know it.
#include "check.h"
#include <linux/futex.h>
#include <pthread.h>

static pthread_mutex_t mutexes[2];
static pthread_barrier_t gate;

static void *dies_with_locks(void *unused) {
    pthread_mutex_lock(&mutexes[0]);
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    pthread_mutex_lock(&mutexes[1]);
    struct robust_list_head *head = NULL;
    size_t bytes = 0;
    MUST(syscall(SYS_get_robust_list, 0, &head, &bytes));
    CHECK(head && bytes == sizeof *head, "get_robust_list: expected a list, saw %p of %zu", head, bytes);
    return unused;
}

int main(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < 2; i++) pthread_mutex_init(&mutexes[i], &attributes);
    pthread_barrier_init(&gate, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, dies_with_locks, NULL);
    pthread_barrier_wait(&gate);
    struct robust_list_head *before, *after;
    size_t bytes;
    MUST(syscall(SYS_get_robust_list, 0, &before, &bytes));
    ready_and_wait();
    MUST(syscall(SYS_get_robust_list, 0, &after, &bytes));
    CHECK(before == after, "robust list of main: expected %p, saw %p", before, after);
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        int error = pthread_mutex_lock(&mutexes[i]);
        CHECK(error == EOWNERDEAD, "mutex %d: expected EOWNERDEAD, saw %d", i, error);
        CHECK(!pthread_mutex_consistent(&mutexes[i]), "mutex %d: expected to be made consistent", i);
        CHECK(!pthread_mutex_unlock(&mutexes[i]), "mutex %d: expected to unlock", i);
    }
    pass();
}
