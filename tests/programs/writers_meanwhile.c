// Threads write all the time to memory that grows in place, or is to be wiped on fork: no write is
// lost, no thread is left behind, and calls that are waited in are waited in to their end.
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define WRITERS 3
#define AREAS 24
#define PAGES 64
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t *areas[AREAS];
static volatile int ends;
static volatile sig_atomic_t signals;

// Each writer has a word of every page for itself, in which it counts.
static void *writer(void *argument) {
    size_t own = (size_t)argument;
    for (uint64_t count = 1; !ends; count++)
        for (size_t area = 0; area < AREAS; area++)
            for (size_t page = 0; page < PAGES; page++) {
                volatile uint64_t *word = areas[area] + page * WORDS + own;
                CHECK(*word == count - 1, "area %zu, page %zu, writer %zu: expected %lu, saw %lu",
                      area, page, own, count - 1, *word);
                *word = count;
            }
    return NULL;
}

// Waits in a call that starts again by itself, and gets a byte at the end.
static void *reader(void *argument) {
    char byte;
    CHECK(read(*(int *)argument, &byte, 1) == 1, "read: %s", strerror(errno));
    return NULL;
}

static void count_signal(int signal) {
    (void)signal;
    signals++;
}

static void *signalled(void *argument) {
    (void)argument;
    while (!ends) __builtin_ia32_pause();
    return NULL;
}

// Waits in vfork, which nothing interrupts, for a child that waits for a byte.
static void *forking(void *argument) {
    char byte;
    pid_t child = vfork();
    if (!child) {
        if (read(*(int *)argument, &byte, 1) != 1) _exit(3);
        _exit(0);
    }
    reap(MUST(child));
    return NULL;
}

// Memory with room behind it to grow.
static uint64_t *growing(void) {
    uint8_t *at = anonymous(2 * PAGES * PAGE);
    MUST(munmap(at + PAGES * PAGE, PAGES * PAGE));
    memset(at, 0, PAGES * PAGE);
    return (uint64_t *)at;
}

int main(void) {
    for (size_t area = 0; area < AREAS; area++) areas[area] = growing();
    ready_and_wait();
    int pipe_ends[2], child_ends[2];
    MUST(pipe(pipe_ends));
    MUST(pipe(child_ends));
    struct sigaction action = {.sa_handler = count_signal};
    MUST(sigaction(SIGUSR1, &action, NULL));
    pthread_t threads[WRITERS], waiting, looping, parent;
    for (size_t own = 0; own < WRITERS; own++)
        CHECK(!pthread_create(&threads[own], NULL, writer, (void *)own), "no thread");
    CHECK(!pthread_create(&waiting, NULL, reader, &pipe_ends[0]), "no thread");
    CHECK(!pthread_create(&looping, NULL, signalled, NULL), "no thread");
    int sent = 0;
    for (size_t area = 0; area < AREAS; area++) {
        if (area == AREAS - 3)
            CHECK(!pthread_create(&parent, NULL, forking, &child_ends[0]), "no thread");
        int before = signals;
        CHECK(!pthread_kill(looping, SIGUSR1), "no thread");
        uint8_t *at = (uint8_t *)areas[area];
        if (area % 2) {
            CHECK(raw_mremap(at, PAGES * PAGE, 2 * PAGES * PAGE, 0, NULL) == at,
                  "mremap in place: %s", strerror(errno));
            CHECK_ZEROS(at + PAGES * PAGE, PAGES * PAGE);
        } else {
            MUST(raw_madvise(at, PAGES * PAGE, MADV_WIPEONFORK));
        }
        sent++;
        for (int tries = 0; signals == before && tries < 50000; tries++)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        CHECK(signals == sent, "expected %d signals handled, saw %d", sent, signals);
    }
    ends = 1;
    MUST(write(pipe_ends[1], "x", 1));
    MUST(write(child_ends[1], "x", 1));
    for (size_t own = 0; own < WRITERS; own++) pthread_join(threads[own], NULL);
    pthread_join(waiting, NULL);
    pthread_join(looping, NULL);
    pthread_join(parent, NULL);
    for (size_t area = 0; area < AREAS; area++)
        for (size_t own = 0; own < WRITERS; own++)
            for (size_t page = 1; page < PAGES; page++)
                CHECK(areas[area][page * WORDS + own] == areas[area][own],
                      "area %zu, page %zu, writer %zu: a write was lost", area, page, own);
    pass();
}
