// A torture for whatever malloc is linked or preloaded: several threads allocate, grow, free and
// trim. What calloc gives has to be zero, above all on memory that was freed before the
// checkpoint, and what was kept has to keep its bytes.
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

#define THREADS 4
#define SLOTS 500

struct slot {
    uint8_t *at;
    size_t bytes;
    unsigned seed;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    struct slot slots[SLOTS];
};

static struct worker workers[THREADS];
static pthread_barrier_t built, go_on;

static uint64_t next(struct worker *worker) {
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    return worker->random ^= worker->random << 17;
}

// Mostly small, some of pages, a few of megabytes.
static size_t size(struct worker *worker) {
    uint64_t draw = next(worker);
    size_t limit = draw % 100 < 70 ? 600 : draw % 100 < 97 ? 40000 : draw % 100 < 99 ? 500000 : 3 * MIB;
    return 1 + (draw >> 8) % limit;
}

static void check_slot(struct slot *slot) { CHECK_FILLED(slot->at, slot->bytes, slot->seed); }

static void take(struct worker *worker, struct slot *slot) {
    slot->bytes = size(worker);
    slot->seed = next(worker) & 0xffff;
    switch (next(worker) % 4) {
    case 0:
        slot->at = malloc(slot->bytes);
        break;
    case 1:
        CHECK(!posix_memalign((void **)&slot->at, 64UL << next(worker) % 8, slot->bytes), "memalign");
        break;
    default:
        slot->at = calloc(1, slot->bytes);
        CHECK(slot->at, "calloc of %zu: expected memory", slot->bytes);
        CHECK_ZEROS(slot->at, slot->bytes);
    }
    CHECK(slot->at, "allocation of %zu: expected memory", slot->bytes);
    fill(slot->at, slot->bytes, slot->seed);
}

static void give(struct slot *slot) {
    check_slot(slot);
    free(slot->at);
    slot->at = NULL;
}

static void resize(struct worker *worker, struct slot *slot) {
    size_t bytes = size(worker), kept = bytes < slot->bytes ? bytes : slot->bytes;
    slot->at = realloc(slot->at, bytes);
    CHECK(slot->at, "realloc to %zu: expected memory", bytes);
    CHECK_FILLED(slot->at, kept, slot->seed);
    slot->bytes = bytes;
    fill(slot->at, bytes, slot->seed);
}

static void churn(struct worker *worker, int rounds) {
    for (int round = 0; round < rounds; round++) {
        struct slot *slot = &worker->slots[next(worker) % SLOTS];
        if (!slot->at)
            take(worker, slot);
        else if (next(worker) % 4 == 0)
            resize(worker, slot);
        else
            give(slot);
    }
}

// The allocator's own way to give memory back, if it has one.
static void trim(void) {
    void (*collect)(int) = (void (*)(int))(uintptr_t)dlsym(RTLD_DEFAULT, "mi_collect");
    int (*control)(const char *, void *, size_t *, void *, size_t) =
        (int (*)(const char *, void *, size_t *, void *, size_t))(uintptr_t)dlsym(RTLD_DEFAULT, "mallctl");
    if (collect)
        collect(1);
    else if (control)
        CHECK(!control("arena.4096.purge", NULL, NULL, NULL, 0), "mallctl: expected to purge all arenas");
    else
        malloc_trim(0);
}

static void empty(struct worker *worker) {
    for (int i = 0; i < SLOTS; i++)
        if (worker->slots[i].at) give(&worker->slots[i]);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    churn(worker, 1250);
    pthread_barrier_wait(&built);
    pthread_barrier_wait(&go_on);
    for (int i = 0; i < SLOTS; i++)
        if (worker->slots[i].at) check_slot(&worker->slots[i]);
    for (int phase = 0; phase < 3; phase++) {
        churn(worker, 600);
        trim();
    }
    empty(worker);
    trim();
    churn(worker, 400);
    return NULL;
}

static void which(void) {
    note("malloc: %s", dlsym(RTLD_DEFAULT, "mi_collect") ? "mimalloc"
                       : dlsym(RTLD_DEFAULT, "mallctl")  ? "jemalloc"
                                                         : "glibc");
}

int main(void) {
    pthread_barrier_init(&built, NULL, THREADS + 1);
    pthread_barrier_init(&go_on, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        workers[i].random = 88172645463325252UL + i;
        CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "pthread_create");
    }
    pthread_barrier_wait(&built);
    // Half of one worker's memory goes back before the checkpoint: calloc meets it afterwards.
    for (int i = 0; i < SLOTS; i += 2)
        if (workers[0].slots[i].at) give(&workers[0].slots[i]);
    trim();
    which();
    ready_and_wait();
    pthread_barrier_wait(&go_on);
    for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
    pass();
}
