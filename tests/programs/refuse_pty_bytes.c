// What waits in a terminal cannot be looked at without taking it.
#include "check.h"
#include <sys/ioctl.h>

int main(void) {
    int master = MUST(posix_openpt(O_RDWR | O_NOCTTY));
    MUST(unlockpt(master));
    int slave = MUST(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    CHECK(write(slave, "output", 6) == 6, "write: %s", strerror(errno));
    ready_and_wait();
    char got[16];
    CHECK(read(master, got, sizeof got) == 6, "read: %s", strerror(errno));
    pass();
}
