// Memory that a parent and its children share, with locks of POSIX threads and waiters in it.
#include "tree.h"
#include <pthread.h>

struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    int round, waiting, answers;
    uint8_t bytes[3 * HUGE];
};

static struct shared *all;
static uint8_t *mapped, *own, *reading;
static int memfd;

static void wait_for(int round) {
    MUST(-pthread_mutex_lock(&all->mutex));
    all->waiting++;
    while (all->round < round) MUST(-pthread_cond_wait(&all->condition, &all->mutex));
    all->answers++;
    pthread_cond_broadcast(&all->condition);
    MUST(-pthread_mutex_unlock(&all->mutex));
}

// Waits in the kernel for the parent's word, at the checkpoint and after it.
static void waiter(void) {
    CHECK(write(to_parent, "x", 1) == 1, "write: %s", strerror(errno));
    wait_for(1);
    CHECK_FILLED(all->bytes, sizeof all->bytes, 8);
    CHECK_FILLED(own, PAGE, 3);
}

static void mapper(void) {
    mapped = MUST(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, PAGE));
    reading = MUST(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, memfd, 0));
    reading[1] = 77;
    close(memfd);
    fill(mapped, 4 * PAGE, 5);
    in_place();
    CHECK_FILLED(mapped + 2 * PAGE, 2 * PAGE, 6);
    CHECK(reading[0] == 0 && reading[1] == 77, "private mapping: saw %d, %d", reading[0], reading[1]);
    mapped[0] = 200;
    in_place();
}

static void holder(void) {
    MUST(-pthread_mutex_lock(&all->mutex));
    in_place();
    MUST(-pthread_mutex_unlock(&all->mutex));
}

static void prepare(void) {
    all = MUST(mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pthread_mutexattr_t of_mutex;
    pthread_condattr_t of_condition;
    pthread_mutexattr_init(&of_mutex);
    pthread_condattr_init(&of_condition);
    pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_settype(&of_mutex, PTHREAD_MUTEX_ERRORCHECK);
    pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED);
    MUST(-pthread_mutex_init(&all->mutex, &of_mutex));
    MUST(-pthread_cond_init(&all->condition, &of_condition));
    fill(all->bytes, sizeof all->bytes, 7);
    memfd = MUST(memfd_create("both", 0));
    MUST(ftruncate(memfd, 8 * PAGE));
    own = filled(PAGE, 3);
}

int main(void) {
    prepare();
    struct child waiters[] = {child(waiter), child(waiter)}, maps = child(mapper);
    while (__atomic_load_n(&all->waiting, __ATOMIC_RELAXED) < 2) usleep(1000);
    struct child holds = child(holder);
    char byte = 9;
    own[0] = 1; // a child keeps what it had
    ready_and_wait();
    CHECK(pthread_mutex_trylock(&all->mutex) == EBUSY, "expected a child to hold the mutex");
    CHECK_FILLED(all->bytes, sizeof all->bytes, 7);
    uint8_t *view = MUST(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0));
    CHECK_FILLED(view + PAGE, 4 * PAGE, 5);
    CHECK(pwrite(memfd, &byte, 1, 0) == 1, "pwrite: %s", strerror(errno));
    fill(view + 3 * PAGE, 2 * PAGE, 6);
    tell(maps);
    CHECK(read(maps.socket, &byte, 1) == 1 && view[PAGE] == 200, "expected to see the child's write");
    tell_and_reap(maps);
    tell_and_reap(holds);
    fill(all->bytes, sizeof all->bytes, 8);
    MUST(-pthread_mutex_lock(&all->mutex));
    all->round = 1;
    pthread_cond_broadcast(&all->condition);
    while (all->answers < 2) MUST(-pthread_cond_wait(&all->condition, &all->mutex));
    MUST(-pthread_mutex_unlock(&all->mutex));
    reap(waiters[0].pid);
    reap(waiters[1].pid);
    pass();
}
