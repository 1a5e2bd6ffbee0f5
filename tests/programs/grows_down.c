// A MAP_GROWSDOWN mapping of one's own keeps growing downwards, with zeros.
#include "check.h"

int main(void) {
    // The kernel keeps a gap of 256 pages below: reserve the room first, then free it.
    uint8_t *room = anonymous(1024 * PAGE);
    uint8_t *top = room + 1000 * PAGE;
    MUST(munmap(room, 1024 * PAGE));
    void *at = mmap(top, 8 * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(at == top, "mmap: expected %p, saw %p", top, at);
    fill(top, 8 * PAGE, 1);
    ready_and_wait();
    CHECK_FILLED(top, 8 * PAGE, 1);
    for (int page = 1; page <= 100; page++) {
        CHECK_ZEROS(top - page * PAGE, PAGE);
        fill(top - page * PAGE, PAGE, page);
    }
    CHECK_FILLED(top, 8 * PAGE, 1);
    pass();
}
