// A process that has made a time namespace, and is not in it before it executes something.
#include "check.h"
#include <sched.h>

int main(void) {
    if (unshare(CLONE_NEWTIME)) note("UNAVAILABLE time namespaces: %s", strerror(errno));
    ready_and_wait();
    pass();
}
