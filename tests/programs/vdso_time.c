// Clocks through the vDSO go on working and never go back.
#include "clock.h"
#include <sched.h>
#include <sys/time.h>

static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_REALTIME_COARSE,
                                   CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME, CLOCK_MONOTONIC_RAW,
                                   CLOCK_TAI};
#define COUNT (sizeof clocks / sizeof *clocks)

int main(void) {
    double before[COUNT];
    for (size_t i = 0; i < COUNT; i++) before[i] = by_vdso(clocks[i]);
    ready_and_wait();
    for (size_t i = 0; i < COUNT; i++) {
        double now = by_vdso(clocks[i]), kernel = by_kernel(clocks[i]);
        CHECK(now >= before[i], "clock %d: expected at least %.6f, saw %.6f", clocks[i], before[i], now);
        CHECK(now < before[i] + 600, "clock %d: expected within minutes of %.6f, saw %.6f", clocks[i],
              before[i], now);
        CHECK(kernel - now < 0.5 && now - kernel < 0.5, "clock %d: expected the kernel's %.6f, saw %.6f",
              clocks[i], kernel, now);
    }
    double last = 0;
    for (int i = 0; i < 100000; i++) {
        double now = by_vdso(CLOCK_MONOTONIC);
        CHECK(now >= last, "monotonic: expected at least %.9f, saw %.9f", last, now);
        last = now;
    }
    struct timeval day;
    MUST(gettimeofday(&day, NULL));
    CHECK(time(NULL) - day.tv_sec <= 1, "time(): expected gettimeofday's second");
    unsigned cpu = 99;
    MUST(getcpu(&cpu, NULL));
    CHECK(cpu < 99, "getcpu: expected a cpu");
    struct timespec resolution;
    MUST(clock_getres(CLOCK_MONOTONIC, &resolution));
    pass();
}
