// 500 memory areas of several protections and holes between them.
#include "fault.h"

#define AREAS 500

static int protection(size_t area) { return area % 3 ? PROT_READ | PROT_WRITE : PROT_READ; }

int main(void) {
    uint8_t *memory = filled(AREAS * 4 * PAGE, 1);
    for (size_t area = 0; area < AREAS; area++) {
        uint8_t *at = memory + area * 4 * PAGE;
        MUST(mprotect(at, 3 * PAGE, protection(area)));
        MUST(munmap(at + 3 * PAGE, PAGE));
    }
    catch_faults();
    ready_and_wait();
    for (size_t area = 0; area < AREAS; area++) {
        size_t from = area * 4 * PAGE;
        CHECK_FILLED_FROM(memory + from, 3 * PAGE, 1, from);
        CHECK(fault_of_read(memory + from + 3 * PAGE) == SIGSEGV, "hole %zu: expected SIGSEGV", area);
        int wanted = protection(area) & PROT_WRITE ? 0 : SIGSEGV;
        int seen = fault_of_write(memory + from);
        CHECK(seen == wanted, "area %zu: expected signal %d on write, saw %d", area, wanted, seen);
        DONTNEED(memory + from + PAGE, PAGE);
        CHECK_ZEROS(memory + from + PAGE, PAGE);
    }
    pass();
}
