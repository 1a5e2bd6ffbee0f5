// Clocks by way of the vDSO and of the kernel, in seconds.
#ifndef FARFORK_CLOCK_H
#define FARFORK_CLOCK_H

#include "check.h"
#include <time.h>

static inline double seconds(struct timespec time) { return time.tv_sec + time.tv_nsec / 1e9; }

static inline double by_vdso(clockid_t clock) {
    struct timespec time;
    MUST(clock_gettime(clock, &time));
    return seconds(time);
}

static inline double by_kernel(clockid_t clock) {
    struct timespec time;
    MUST(syscall(SYS_clock_gettime, clock, &time));
    return seconds(time);
}

#endif
