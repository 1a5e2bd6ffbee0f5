// Events that wait cannot be looked at without taking them.
#include "check.h"
#include <sys/inotify.h>

int main(void) {
    int fd = MUST(inotify_init1(IN_NONBLOCK));
    MUST(inotify_add_watch(fd, ".", IN_CREATE));
    close(MUST(open("watched", O_CREAT | O_RDWR, 0644)));
    ready_and_wait();
    char events[1024];
    CHECK(read(fd, events, sizeof events) > 0, "inotify: expected an event (%s)", strerror(errno));
    MUST(unlink("watched"));
    pass();
}
