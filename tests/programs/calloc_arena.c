// glibc's arenas of threads shrink with MADV_DONTNEED and grow again without any call that clears.
// How much of that calloc clears by itself differs between versions; zero it has to be.
#include "check.h"
#include <malloc.h>
#include <pthread.h>

#define BLOCKS 40000
#define BYTES 1000

static pthread_barrier_t built, go_on;
static uint8_t *blocks[BLOCKS];

static void *in_own_arena(void *unused) {
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BYTES);
        fill(blocks[i], BYTES, i);
    }
    pthread_barrier_wait(&built);
    pthread_barrier_wait(&go_on);
    for (unsigned i = 0; i < BLOCKS; i++) CHECK_FILLED(blocks[i], BYTES, i);
    for (unsigned i = BLOCKS; i > 0; i--) free(blocks[i - 1]);
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = calloc(1, BYTES);
        CHECK_ZEROS(blocks[i], BYTES);
        fill(blocks[i], BYTES, i + 1);
    }
    return unused;
}

int main(void) {
    pthread_t thread;
    pthread_barrier_init(&built, NULL, 2);
    pthread_barrier_init(&go_on, NULL, 2);
    pthread_create(&thread, NULL, in_own_arena, NULL);
    pthread_barrier_wait(&built);
    ready_and_wait();
    pthread_barrier_wait(&go_on);
    pthread_join(thread, NULL);
    pass();
}
