// timerfd: armed, periodic, expired and not yet read, unarmed.
#include "check.h"
#include <sys/timerfd.h>
#include <time.h>

static int make(int clock, long first_ms, long period_ms) {
    int fd = MUST(timerfd_create(clock, TFD_NONBLOCK));
    struct itimerspec time = {{period_ms / 1000, period_ms % 1000 * 1000000},
                              {first_ms / 1000, first_ms % 1000 * 1000000}};
    MUST(timerfd_settime(fd, 0, &time, NULL));
    return fd;
}

static uint64_t ticks(int fd) {
    uint64_t value = 0;
    return read(fd, &value, 8) == 8 ? value : 0;
}

int main(void) {
    int periodic = make(CLOCK_MONOTONIC, 20, 20), far = make(CLOCK_MONOTONIC, 3600000, 0);
    int wall = make(CLOCK_REALTIME, 3600000, 1000), unarmed = make(CLOCK_MONOTONIC, 0, 0);
    int expired = make(CLOCK_MONOTONIC, 1, 0);
    usleep(50000);
    ready_and_wait();
    usleep(100000);
    uint64_t seen = ticks(periodic);
    CHECK(seen >= 3, "periodic: expected 3 ticks or more, saw %lu", seen);
    CHECK(ticks(expired) == 1, "expired before, unread: expected 1 tick");
    CHECK(ticks(far) == 0 && ticks(wall) == 0 && ticks(unarmed) == 0, "far, wall, unarmed: expected no ticks");
    struct itimerspec left;
    MUST(timerfd_gettime(far, &left));
    CHECK(left.it_value.tv_sec > 3000 && left.it_value.tv_sec <= 3600, "far: expected an hour, saw %ld s",
          left.it_value.tv_sec);
    MUST(timerfd_gettime(wall, &left));
    CHECK(left.it_interval.tv_sec == 1, "wall: expected a period of 1 s, saw %ld", left.it_interval.tv_sec);
    MUST(timerfd_gettime(unarmed, &left));
    CHECK(!left.it_value.tv_sec && !left.it_value.tv_nsec, "unarmed: expected unarmed");
    pass();
}
