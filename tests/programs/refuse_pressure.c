// What is written to a pressure file is a trigger, of which the kernel shows nothing.
#include "check.h"
#include <poll.h>

int main(void) {
    int fd = open("/proc/pressure/memory", O_RDWR | O_NONBLOCK);
    const char *trigger = "some 500000 2000000";
    if (fd < 0 || write(fd, trigger, strlen(trigger) + 1) < 0) {
        note("UNAVAILABLE /proc/pressure: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    ready_and_wait();
    struct pollfd ready = {fd, POLLPRI, 0};
    CHECK(poll(&ready, 1, 0) >= 0 && !(ready.revents & POLLERR), "the trigger has gone");
    pass();
}
