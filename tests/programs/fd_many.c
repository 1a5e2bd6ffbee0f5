// A thousand descriptors of several kinds.
#include "check.h"
#include <sys/eventfd.h>
#include <sys/resource.h>

#define COUNT 1000

int main(void) {
    struct rlimit limit = {4096, 4096};
    if (setrlimit(RLIMIT_NOFILE, &limit)) note("setrlimit: %s", strerror(errno));
    int fds[COUNT];
    for (int i = 0; i < COUNT; i++) {
        if (i % 4 == 0)
            fds[i] = MUST(eventfd(i + 1, EFD_NONBLOCK));
        else if (i % 4 == 1)
            fds[i] = MUST(open("/dev/null", O_RDWR));
        else if (i % 4 == 2)
            fds[i] = MUST(dup(fds[i - 1]));
        else
            fds[i] = MUST(open("/dev/zero", O_RDONLY | (i % 8 == 3 ? O_CLOEXEC : 0)));
    }
    for (int i = 8; i < COUNT; i += 40) {
        close(fds[i]);
        fds[i] = -fds[i];
    }
    ready_and_wait();
    uint64_t value;
    for (int i = 0; i < COUNT; i++) {
        if (fds[i] < 0) {
            REFUSED(fcntl(-fds[i], F_GETFD), EBADF);
            continue;
        }
        int flags = MUST(fcntl(fds[i], F_GETFD));
        CHECK(flags == (i % 8 == 3 ? FD_CLOEXEC : 0), "fd %d: expected other flags, saw %d", fds[i], flags);
        if (i % 4 == 0)
            CHECK(read(fds[i], &value, 8) == 8 && value == (uint64_t)i + 1, "eventfd %d: expected %d", fds[i], i + 1);
    }
    int lowest = MUST(open("/dev/null", O_RDONLY));
    CHECK(lowest == -fds[8], "a new descriptor: expected the lowest free %d, saw %d", -fds[8], lowest);
    pass();
}
