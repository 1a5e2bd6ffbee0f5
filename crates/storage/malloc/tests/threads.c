/* Threads that allocate, pass, resize and free objects, and check that each object has what was written to it. Threads come and
 * go, and allocate in destructors of thread-local values; meanwhile the process forks, and the children check, too.
 * Usage: threads SECONDS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 4096, THREADS = 6, PER_THREAD = 4000 };

struct object {
    size_t bytes;
    uint64_t seed;
    unsigned char content[];
};

/* Objects that any thread may take. */
static struct object *_Atomic slots[SLOTS];
static atomic_int is_over, generations;
static pthread_key_t key;

static void fail(const char *what, struct object *object) {
    size_t bytes = object ? object->bytes : 0;
    fprintf(stderr, "threads.c: %s at %p of %zu bytes\n", what, (void *)object, bytes);
    abort();
}

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t size(uint64_t *state) {
    uint64_t kind = next(state) % 1000;
    if (kind < 850) return next(state) % 400;
    if (kind < 990) return next(state) % 20000;
    if (kind < 999) return next(state) % 400000;
    return next(state) % (6u << 20);
}

/* Large ones are looked at here and there. */
static size_t step(size_t at) { return at < 512 ? at + 1 : at + 509; }

static void fill(struct object *object) {
    for (size_t at = 0; at < object->bytes; at = step(at))
        object->content[at] = (unsigned char)(object->seed + at);
    if (object->bytes) object->content[object->bytes - 1] = (unsigned char)object->seed;
}

static void check(struct object *object, size_t bytes) {
    size_t last = object->bytes ? object->bytes - 1 : 0;
    for (size_t at = 0; at < bytes; at = step(at))
        if (at != last && object->content[at] != (unsigned char)(object->seed + at))
            fail("other content", object);
    if (bytes == object->bytes && bytes && object->content[last] != (unsigned char)object->seed)
        fail("another last byte", object);
}

static struct object *make(uint64_t *state) {
    size_t bytes = size(state);
    struct object *object = NULL;
    switch (next(state) % 4) {
    case 0:
        object = calloc(1, sizeof *object + bytes);
        for (size_t at = 0; object && at < bytes; at = step(at))
            if (object->content[at] != 0) fail("calloc did not clear", object);
        break;
    case 1: {
        void *place;
        size_t alignment = (size_t)16 << next(state) % 9;
        if (posix_memalign(&place, alignment, sizeof *object + bytes) == 0) object = place;
        if ((uintptr_t)object % alignment) fail("another alignment", object);
        break;
    }
    default:
        object = malloc(sizeof *object + bytes);
    }
    if (!object) fail("no memory", NULL);
    object->bytes = bytes;
    object->seed = next(state);
    fill(object);
    return object;
}

static struct object *resize(struct object *object, uint64_t *state) {
    size_t before = object->bytes, bytes = size(state);
    struct object *moved = realloc(object, sizeof *object + bytes);
    if (!moved) fail("no memory to resize it", object);
    size_t kept = before < bytes ? before : bytes;
    for (size_t at = 0; at < kept; at = step(at))
        if (at + 1 != before && moved->content[at] != (unsigned char)(moved->seed + at))
            fail("realloc lost content", moved);
    moved->bytes = bytes;
    fill(moved);
    return moved;
}

static void last(void *value) {
    struct object *object = value;
    check(object, object->bytes);
    free(object);
    uint64_t state = 88172645463325252u;
    for (int at = 0; at < 10; at++) free(make(&state));
}

static void *work(void *argument) {
    uint64_t state = (uintptr_t)argument * 2654435761u + 88172645463325252u;
    pthread_setspecific(key, make(&state));
    for (int turn = 0; turn < PER_THREAD && !atomic_load(&is_over); turn++) {
        struct object *object = make(&state);
        if (next(&state) % 8 == 0) object = resize(object, &state);
        object = atomic_exchange(&slots[next(&state) % SLOTS], object);
        if (!object) continue;
        check(object, object->bytes);
        if (next(&state) % 16 == 0) {
            object = resize(object, &state);
            check(object, object->bytes);
        }
        free(object);
    }
    return NULL;
}

static void *generation(void *argument) {
    uintptr_t number = (uintptr_t)argument * 1000;
    while (!atomic_load(&is_over)) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)++number) != 0) abort();
        pthread_join(thread, NULL);
        atomic_fetch_add(&generations, 1);
    }
    return NULL;
}

/* A thread of a child may be the first one of its arena. */
static void *few(void *argument) {
    uint64_t state = (uint64_t)getpid() * 31 + (uintptr_t)argument;
    for (int turn = 0; turn < 200; turn++) {
        struct object *object = make(&state);
        object = resize(object, &state);
        check(object, object->bytes);
        free(object);
    }
    return NULL;
}

/* In a child the other threads are gone, and what they left in the slots is whole: what a thread changes is in no slot. */
static int child(void) {
    uint64_t state = (uint64_t)getpid() + 88172645463325252u;
    for (int at = 0; at < SLOTS; at++) {
        struct object *object = slots[at];
        if (!object) continue;
        /* With a region, a child may see what another thread wrote just after the fork. */
        if (!getenv("FARFORK_REGION")) check(object, object->bytes);
        if (at % 2) free(object);
    }
    for (int turn = 0; turn < 1000; turn++) {
        struct object *object = make(&state);
        check(object, object->bytes);
        free(turn % 3 ? object : resize(object, &state));
    }
    pthread_t threads[2];
    for (uintptr_t at = 0; at < 2; at++)
        if (pthread_create(&threads[at], NULL, few, (void *)(at + 1)) != 0) abort();
    for (int at = 0; at < 2; at++) pthread_join(threads[at], NULL);
    return 0;
}

int main(int count, char **arguments) {
    double seconds = count > 1 ? atof(arguments[1]) : 1;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    pthread_key_create(&key, last);
    pthread_t threads[THREADS];
    for (uintptr_t at = 0; at < THREADS; at++)
        if (pthread_create(&threads[at], NULL, generation, (void *)(at + 1)) != 0) abort();
    if (write(1, "begun\n", 6) != 6) abort();
    int forks = 0;
    do {
        pid_t pid = fork();
        if (pid == 0) _exit(child());
        int status = -1;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "threads.c: a child ends with status %#x\n", status);
            abort();
        }
        forks++;
        usleep(20000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
    atomic_store(&is_over, 1);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    for (int at = 0; at < SLOTS; at++)
        if (slots[at]) {
            check(slots[at], slots[at]->bytes);
            free(slots[at]);
        }
    printf("%d threads, %d forks\n", atomic_load(&generations), forks);
    return 0;
}
