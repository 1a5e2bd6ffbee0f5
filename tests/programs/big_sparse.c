// 4 GiB reserved, a few pages touched: far larger than the pool it has to fit into.
#include "check.h"

#define RESERVED (4UL << 30)

static const size_t touched[] = {0, 1, 511, 512, 513, 70000, 524287, 786432, 1048575};

int main(void) {
    uint8_t *memory = mmap(NULL, RESERVED, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap of 4 GiB: %s", strerror(errno));
    for (size_t i = 0; i < sizeof touched / sizeof *touched; i++)
        fill(memory + touched[i] * PAGE, PAGE, i);
    uint8_t *none = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(none != MAP_FAILED, "mmap of 4 GiB without access: %s", strerror(errno));
    ready_and_wait();
    for (size_t i = 0; i < sizeof touched / sizeof *touched; i++)
        CHECK_FILLED(memory + touched[i] * PAGE, PAGE, i);
    for (size_t page = 2; page < 511; page++) CHECK_ZEROS(memory + page * PAGE, PAGE);
    for (size_t page = 100000; page < RESERVED / PAGE; page += 9973)
        CHECK_ZEROS(memory + page * PAGE, PAGE);
    fill(memory + 600000 * PAGE, HUGE, 50);
    CHECK_FILLED(memory + 600000 * PAGE, HUGE, 50);
    DONTNEED(memory, RESERVED);
    for (size_t i = 0; i < sizeof touched / sizeof *touched; i++)
        CHECK_ZEROS(memory + touched[i] * PAGE, PAGE);
    MUST(mprotect(none + 3 * HUGE, HUGE, PROT_READ | PROT_WRITE));
    CHECK_ZEROS(none + 3 * HUGE, HUGE);
    pass();
}
