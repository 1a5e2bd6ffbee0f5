// A host name of its own, which a clone would not have.
#include "check.h"
#include <sched.h>

int main(void) {
    if (unshare(CLONE_NEWUTS)) {
        note("UNAVAILABLE unshare: %s", strerror(errno));
        pass();
    }
    ready_and_wait();
    MUST(sethostname("farfork-test", 12));
    char name[65];
    MUST(gethostname(name, sizeof name));
    CHECK(!strcmp(name, "farfork-test"), "host name: saw %s", name);
    pass();
}
