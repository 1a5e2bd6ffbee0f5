// MADV_REMOVE wants a shared file mapping: on anonymous memory it is EINVAL, before and after.
#include "check.h"

int main(void) {
    uint8_t *memory = filled(16 * PAGE, 1);
    ready_and_wait();
    uint8_t *fresh = filled(16 * PAGE, 2);
    REFUSED(raw_madvise(fresh, 4 * PAGE, MADV_REMOVE), EINVAL);
    REFUSED(raw_madvise(memory, 4 * PAGE, MADV_REMOVE), EINVAL);
    CHECK_FILLED(memory, 16 * PAGE, 1);
    pass();
}
