// mlockall for what is mapped later, at once or when it is touched.
#include "check.h"

static long locked_kb(void) {
    char line[256];
    long kb = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "VmLck: %ld", &kb);
    fclose(status);
    return kb;
}

static int resident(uint8_t *at) {
    unsigned char in = 0;
    MUST(mincore(at, PAGE, &in));
    return in & 1;
}

int main(void) {
    int on_fault = getenv("ON_FAULT") != NULL;
    if (mlockall(MCL_FUTURE | (on_fault ? MCL_ONFAULT : 0))) {
        note("UNAVAILABLE mlockall: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    uint8_t *before = filled(20 * PAGE, 1);
    ready_and_wait();
    CHECK_FILLED(before, 20 * PAGE, 1);
    long was = locked_kb();
    uint8_t *after = anonymous(256 * PAGE);
    CHECK(locked_kb() == was + 1024, "locked: expected %ld kB, saw %ld", was + 1024, locked_kb());
    CHECK(resident(after + 100 * PAGE) == !on_fault, "resident: expected %d", !on_fault);
    MUST(munlockall());
    was = locked_kb();
    anonymous(PAGE);
    CHECK(locked_kb() == was, "after munlockall: expected %ld kB, saw %ld", was, locked_kb());
    pass();
}
