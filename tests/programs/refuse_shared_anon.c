// Shared anonymous memory may be shared with anyone: not to be cloned.
#include "check.h"

int main(void) {
    uint8_t *shared = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap: %s", strerror(errno));
    fill(shared, 4 * PAGE, 1);
    ready_and_wait();
    CHECK_FILLED(shared, 4 * PAGE, 1);
    pass();
}
