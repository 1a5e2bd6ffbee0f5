// Protections page by page survive, fault as before and can be changed afterwards.
#include "fault.h"

#define PAGES 64

static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE,
                                  PROT_READ | PROT_EXEC};

static void check_page(uint8_t *page, int prot, size_t index) {
    int read = fault_of_read(page), write = fault_of_write(page);
    int wanted_read = prot & PROT_READ ? 0 : SIGSEGV, wanted_write = prot & PROT_WRITE ? 0 : SIGSEGV;
    CHECK(read == wanted_read, "page %zu: expected signal %d on read, saw %d", index, wanted_read,
          read);
    CHECK(write == wanted_write, "page %zu: expected signal %d on write, saw %d", index,
          wanted_write, write);
    if (prot & PROT_EXEC) {
        CHECK(fault_of_call(page) == 0, "page %zu: expected to execute", index);
    } else {
        // Never called when it could run: its bytes are a pattern, not code.
        CHECK(fault_of_call(page) == SIGSEGV, "page %zu: expected SIGSEGV on a call", index);
    }
}

int main(void) {
    uint8_t *memory = filled(PAGES * PAGE, 1);
    for (size_t page = 0; page < PAGES; page++) {
        int prot = protections[page % 4];
        if (prot & PROT_EXEC) memory[page * PAGE] = 0xc3; // ret
        MUST(mprotect(memory + page * PAGE, PAGE, prot));
    }
    catch_faults();
    ready_and_wait();
    for (size_t page = 0; page < PAGES; page++)
        check_page(memory + page * PAGE, protections[page % 4], page);
    MUST(mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE));
    for (size_t page = 0; page < PAGES; page++) {
        if (page % 4 == 3) memory[page * PAGE] = pattern(page * PAGE, 1);
        CHECK_FILLED_FROM(memory + page * PAGE, PAGE, 1, page * PAGE);
    }
    DONTNEED(memory, PAGES * PAGE);
    CHECK_ZEROS(memory, PAGES * PAGE);
    pass();
}
