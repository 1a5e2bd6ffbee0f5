// Every other page of much memory is discarded. The kernel allows a process 65530 mappings, and a
// program that has used up none of them has not come to that limit.
#include "check.h"

#define PAGES 70000UL

int main(void) {
    uint8_t *memory = anonymous(PAGES * PAGE);
    MUST(raw_madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE));
    memset(memory, 0xab, PAGES * PAGE);
    ready_and_wait();
    for (size_t page = 0; page < PAGES; page += 2) {
        uint8_t *at = memory + page * PAGE;
        at[1] = 0x11;
        DONTNEED(at, PAGE);
        CHECK(!at[0] && !at[1] && !at[PAGE - 1], "page %zu: expected zeros", page);
        CHECK(at[PAGE] == 0xab, "page %zu: expected 0xab, saw %#x", page + 1, at[PAGE]);
    }
    // Mappings of the program's own, which do not become one.
    for (size_t more = 0; more < 10000; more++) {
        int prot = more % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
        void *at = mmap(NULL, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED, "mapping %zu: %s", more, strerror(errno));
    }
    pass();
}
