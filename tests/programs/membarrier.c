// membarrier needs registration: what was registered before works after.
#include "check.h"
#include <linux/membarrier.h>

static long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

int main(void) {
    MUST(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));
    int core = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE) == 0;
    ready_and_wait();
    MUST(membarrier(MEMBARRIER_CMD_QUERY));
    MUST(membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
    if (core) MUST(membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE));
    MUST(membarrier(MEMBARRIER_CMD_GLOBAL));
    pass();
}
