/* The family of malloc as programs use it: sizes, alignments, contents, errors. Prints what is wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The compiler knows what malloc does, and would leave calls out. */
static void *(*volatile c_malloc)(size_t) = malloc;
static void *(*volatile c_calloc)(size_t, size_t) = calloc;
static void *(*volatile c_realloc)(void *, size_t) = realloc;
static void *(*volatile c_reallocarray)(void *, size_t, size_t) = reallocarray;
static void (*volatile c_free)(void *) = free;
static void *(*volatile c_memalign)(size_t, size_t) = memalign;

static int failures;
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "family.c:%d: %s\n", __LINE__, #condition); \
            failures++; \
        } \
    } while (0)

static void sizes(void) {
    for (size_t bytes = 0; bytes < 40u << 20; bytes = bytes < 300 ? bytes + 1 : bytes + bytes / 7) {
        unsigned char *first = c_malloc(bytes), *second = c_malloc(bytes);
        CHECK(first && second && first != second);
        CHECK((uintptr_t)first % 16 == 0 && (uintptr_t)second % 16 == 0);
        size_t usable = malloc_usable_size(first);
        CHECK(usable >= bytes);
        memset(first, 0xa5, usable);
        memset(second, 0x5a, malloc_usable_size(second));
        CHECK(usable == 0 || (first[0] == 0xa5 && first[usable - 1] == 0xa5));
        unsigned char *zeros = c_calloc(bytes / 3 + 1, 3);
        CHECK(zeros != NULL);
        for (size_t at = 0; zeros && at < bytes; at++)
            if (zeros[at] != 0) {
                CHECK(!"calloc clears");
                break;
            }
        c_free(first);
        c_free(zeros);
        /* Where it was is likely to be used again. */
        zeros = c_calloc(1, bytes);
        for (size_t at = 0; at < bytes; at++)
            if (zeros[at] != 0) {
                CHECK(!"calloc clears what was freed");
                break;
            }
        c_free(zeros);
        c_free(second);
    }
}

static void contents(void) {
    unsigned char *object = NULL;
    size_t filled = 0;
    for (int step = 0; step < 2000; step++) {
        size_t bytes = (size_t)((step * 2654435761u) >> 8) % (step % 50 == 0 ? 30u << 20 : 100000) + 1;
        unsigned char *moved = c_realloc(object, bytes);
        CHECK(moved != NULL && (uintptr_t)moved % 16 == 0);
        object = moved;
        for (size_t at = 0; at < filled && at < bytes; at += at < 100 ? 1 : 997)
            if (object[at] != (unsigned char)(at * 31)) {
                CHECK(!"realloc keeps contents");
                break;
            }
        for (size_t at = 0; at < bytes; at++) object[at] = (unsigned char)(at * 31);
        filled = bytes;
    }
    c_free(object);
    CHECK(c_realloc(c_malloc(10), 0) == NULL);
    void *first = c_realloc(NULL, 100);
    CHECK(first != NULL);
    c_free(first);
    c_free(NULL);
}

static void alignments(void) {
    size_t most = getenv("FARFORK_REGION") ? 1u << 16 : 1u << 22;
    for (size_t alignment = 8; alignment <= most; alignment *= 2)
        for (size_t bytes = 0; bytes < 10u << 20; bytes = bytes * 3 + 1) {
            void *objects[6];
            CHECK(posix_memalign(&objects[0], alignment, bytes) == 0);
            objects[1] = c_memalign(alignment, bytes);
            objects[2] = aligned_alloc(alignment, bytes);
            objects[3] = valloc(bytes);
            objects[4] = pvalloc(bytes);
            objects[5] = c_memalign(alignment - 1, bytes);
            for (int at = 0; at < 6; at++) {
                size_t expected = at < 3 || at == 5 ? alignment : 4096;
                CHECK(objects[at] && (uintptr_t)objects[at] % expected == 0);
                if (!objects[at]) continue;
                CHECK(malloc_usable_size(objects[at]) >= bytes);
                memset(objects[at], at + 1, malloc_usable_size(objects[at]));
            }
            for (int at = 0; at < 6; at++) {
                unsigned char *object = objects[at];
                size_t usable = malloc_usable_size(object);
                CHECK(usable == 0 || (object[0] == at + 1 && object[usable - 1] == at + 1));
                if (bytes > 0) {
                    object = c_realloc(object, bytes * 2);
                    CHECK(object && object[0] == at + 1 && object[bytes - 1] == at + 1);
                }
                c_free(object);
            }
            CHECK(malloc_usable_size(objects[4] = pvalloc(bytes)) >= (bytes ? bytes : 1));
            CHECK(malloc_usable_size(objects[4]) >= 4096);
            c_free(objects[4]);
        }
    void *kept = (void *)8;
    CHECK(posix_memalign(&kept, 3, 8) == EINVAL && posix_memalign(&kept, 4, 8) == EINVAL);
    CHECK(posix_memalign(&kept, 0, 8) == EINVAL && posix_memalign(&kept, 24, 8) == EINVAL);
    errno = 7;
    CHECK(posix_memalign(&kept, 64, PTRDIFF_MAX) == ENOMEM && kept == (void *)8 && errno == 7);
}

static void errors(void) {
    size_t impossible[] = {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 4096, PTRDIFF_MAX, (size_t)1 << 62, (size_t)1 << 48};
    for (size_t at = 0; at < sizeof impossible / sizeof *impossible; at++) {
        size_t bytes = impossible[at];
        errno = 0;
        CHECK(c_malloc(bytes) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(c_calloc(1, bytes) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(c_memalign(4096, bytes) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(pvalloc(bytes) == NULL && errno == ENOMEM);
        unsigned char *object = c_malloc(100);
        memset(object, 9, 100);
        errno = 0;
        CHECK(c_realloc(object, bytes) == NULL && errno == ENOMEM);
        CHECK(object[0] == 9 && object[99] == 9);
        c_free(object);
        object = c_malloc(8u << 20);
        object[0] = object[(8u << 20) - 1] = 3;
        errno = 0;
        CHECK(c_realloc(object, bytes) == NULL && errno == ENOMEM);
        CHECK(object[0] == 3 && object[(8u << 20) - 1] == 3);
        c_free(object);
    }
    errno = 0;
    CHECK(c_calloc(SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(c_reallocarray(NULL, SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    void *array = c_reallocarray(NULL, 10, 10);
    CHECK(array && malloc_usable_size(array) >= 100);
    c_free(array);
    CHECK(malloc_usable_size(NULL) == 0);
    for (size_t bytes = 1; bytes < 64u << 20; bytes *= 3) {
        void *object = c_malloc(bytes);
        errno = 77;
        c_free(object);
        CHECK(errno == 77);
        object = c_malloc(bytes);
        CHECK(errno == 77);
        c_free(object);
    }
}

static size_t resident(void) {
    size_t all, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%zu %zu", &all, &pages) == 2);
    if (file) fclose(file);
    return pages * 4096;
}

/* Memory that is freed serves again: the process does not grow. */
static void reuse(void) {
    static void *objects[20000];
    size_t before = 0;
    for (int round = 0; round < 32; round++) {
        if (round == 8) before = resident();
        size_t bytes = 16 << (round % 8);
        for (int at = 0; at < 20000; at++) {
            objects[at] = c_malloc(bytes);
            memset(objects[at], round, bytes);
        }
        for (int at = 0; at < 20000; at++) {
            CHECK(((char *)objects[at])[bytes - 1] == (char)round);
            c_free(objects[at]);
        }
    }
    /* All sizes were there once in the first eight rounds. */
    size_t after = resident();
    CHECK(after < before + (8 << 20));
    int is_own = !getenv("FARFORK_REGION");
    CHECK(malloc_trim(0) == is_own);
    if (is_own) CHECK(resident() < after - (16 << 20));
    /* One at a time takes the same spans again. */
    size_t idle = resident();
    for (int round = 0; round < 1000; round++) {
        char *object = c_malloc(100000);
        memset(object, round, 100000);
        c_free(object);
    }
    CHECK(resident() < idle + (8 << 20));
}

int main(void) {
    sizes();
    contents();
    alignments();
    errors();
    reuse();
    return failures != 0;
}
