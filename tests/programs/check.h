// What every program shares. The contract with the driver:
//   - build up state, then ready_and_wait(): prints READY and blocks in a plain read of fd 0;
//   - after one byte arrives: verify everything, do new work, then pass();
//   - CHECK() prints "FAIL: what was expected, what was seen" and exits with 1.
// Lines beginning with NOTE or VALUE are for the driver's report and comparisons.
#ifndef FARFORK_CHECK_H
#define FARFORK_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define HUGE (2 * MIB)

// Formats into the stack and writes at once: no buffer, no malloc, safe after a raw fork.
static inline void say(const char *prefix, const char *format, va_list arguments) {
    char line[1024];
    int at = snprintf(line, sizeof line, "%s", prefix);
    at += vsnprintf(line + at, sizeof line - at - 1, format, arguments);
    if (at > (int)sizeof line - 2) at = sizeof line - 2;
    line[at++] = '\n';
    if (write(1, line, at) != at) _exit(3);
}

__attribute__((format(printf, 1, 2))) static inline void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say("NOTE ", format, arguments);
    va_end(arguments);
}

__attribute__((format(printf, 3, 4), noreturn)) static inline void
fail_at(const char *file, int line, const char *format, ...) {
    char prefix[128];
    const char *base = strrchr(file, '/');
    snprintf(prefix, sizeof prefix, "FAIL: %s:%d: ", base ? base + 1 : file, line);
    va_list arguments;
    va_start(arguments, format);
    say(prefix, format, arguments);
    va_end(arguments);
    _exit(1);
}

#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(cond, ...) \
    do { \
        if (!(cond)) FAIL(__VA_ARGS__); \
    } while (0)
// A call that has to work: anything but a negative result.
#define MUST(call) \
    ({ \
        __typeof__(call) result_ = (call); \
        if ((long)result_ < 0) FAIL("%s: %s", #call, strerror(errno)); \
        result_; \
    })
// A call that has to fail with exactly this errno.
#define REFUSED(call, expected) \
    do { \
        errno = 0; \
        long result_ = (long)(call); \
        if (result_ != -1 || errno != (expected)) \
            FAIL("%s: expected errno %d, saw result %ld errno %d", #call, (expected), result_, errno); \
    } while (0)

static inline void pretend_naive_restore(void);

// The byte that arrived.
static inline char ready_and_wait(void) {
    if (getenv("FARFORK_NAIVE")) pretend_naive_restore();
    char byte = 0;
    if (write(1, "READY\n", 6) != 6) _exit(3);
    ssize_t got = read(0, &byte, 1);
    CHECK(got == 1, "read of one byte from fd 0: expected 1, saw %zd (%s)", got, strerror(errno));
    return byte;
}

__attribute__((noreturn)) static inline void pass(void) {
    if (write(1, "PASS\n", 5) != 5) _exit(3);
    exit(0);
}

// Every byte depends on the seed and its place, and none is zero.
static inline uint8_t pattern(size_t at, unsigned seed) {
    return (uint8_t)(at * 131 + (at >> 8) * 17 + (at >> 16) * 7 + seed * 29) | 1;
}

static inline void fill(void *memory, size_t bytes, unsigned seed) {
    uint8_t *to = memory;
    for (size_t at = 0; at < bytes; at++) to[at] = pattern(at, seed);
}

// `from` is where in the pattern the memory begins.
static inline void filled_at(const char *file, int line, const char *what, const void *memory,
                             size_t bytes, unsigned seed, size_t from) {
    const uint8_t *is = memory;
    size_t at = 0;
    // By words as long as they are right: emulated memory takes as long for a byte.
    for (; at + 8 <= bytes; at += 8) {
        uint64_t seen, expected = 0;
        for (unsigned byte = 0; byte < 8; byte++)
            expected = expected >> 8 | (uint64_t)pattern(from + at + byte, seed) << 56;
        memcpy(&seen, is + at, 8);
        if (seen != expected) break;
    }
    for (; at < bytes; at++)
        if (is[at] != pattern(from + at, seed))
            fail_at(file, line, "%s: expected %#x at offset %#zx, saw %#x", what,
                    pattern(from + at, seed), at, is[at]);
}

static inline void zeros_at(const char *file, int line, const char *what, const void *memory,
                            size_t bytes) {
    const uint8_t *is = memory;
    for (size_t at = 0; at < bytes; at++)
        if (is[at])
            fail_at(file, line, "%s: expected zero at offset %#zx, saw %#x", what, at, is[at]);
}

#define CHECK_FILLED(memory, bytes, seed) \
    filled_at(__FILE__, __LINE__, #memory, memory, bytes, seed, 0)
#define CHECK_FILLED_FROM(memory, bytes, seed, from) \
    filled_at(__FILE__, __LINE__, #memory, memory, bytes, seed, from)
#define CHECK_ZEROS(memory, bytes) zeros_at(__FILE__, __LINE__, #memory, memory, bytes)

static inline uint8_t *anonymous(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap of %zu anonymous bytes: %s", bytes, strerror(errno));
    return at;
}

static inline uint8_t *anonymous_at(void *where, size_t bytes) {
    void *at = mmap(where, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(at == where, "mmap at %p: expected that address, saw %p", where, at);
    return at;
}

static inline uint8_t *filled(size_t bytes, unsigned seed) {
    uint8_t *at = anonymous(bytes);
    fill(at, bytes, seed);
    return at;
}

// Raw calls: libc must not come between the program and the trap.
static inline long raw_madvise(void *at, size_t bytes, int advice) {
    return syscall(SYS_madvise, at, bytes, advice);
}

static inline uint8_t *raw_mremap(void *old, size_t old_bytes, size_t new_bytes, int flags,
                                  void *to) {
    return (uint8_t *)syscall(SYS_mremap, old, old_bytes, new_bytes, flags, to);
}

#define DONTNEED(at, bytes) MUST(raw_madvise(at, bytes, MADV_DONTNEED))

// The child has said why on our stdout; here only that it has to have ended well.
static inline void reap(pid_t child) {
    int status = 0;
    pid_t got;
    do got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == child, "waitpid: expected %d, saw %d (%s)", child, got, strerror(errno));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "child: expected exit status 0, saw wait status %#x", status);
}

#include "naive.h"
#endif
