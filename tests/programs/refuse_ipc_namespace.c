// System V objects and message queues apart from the node's, which a clone would see.
#include "check.h"
#include <sched.h>

int main(void) {
    if (unshare(CLONE_NEWIPC)) {
        note("UNAVAILABLE unshare: %s", strerror(errno));
        pass();
    }
    ready_and_wait();
    pass();
}
