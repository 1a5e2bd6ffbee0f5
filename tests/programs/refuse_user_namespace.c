// A user namespace of the process's own: its ids are not those that others see.
#include "check.h"
#include <sched.h>

int main(void) {
    if (unshare(CLONE_NEWUSER)) {
        note("UNAVAILABLE a user namespace: %s", strerror(errno));
        pass();
    }
    uid_t inside = getuid();
    ready_and_wait();
    CHECK(getuid() == inside, "getuid: expected %d, saw %d", inside, getuid());
    pass();
}
