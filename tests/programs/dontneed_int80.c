// A 64-bit program may use the 32-bit system call table: a filter on numbers must know both.
#include "check.h"
#include "fault.h"

#define MADVISE_32 219

static long int80(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(a), "c"(b), "d"(c)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)result;
}

int main(void) {
    uint8_t *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap below 2 GiB: %s", strerror(errno));
    fill(memory, 16 * PAGE, 1);
    catch_faults();
    volatile int there = 0;
    if (!sigsetjmp(fault_escape, 1)) there = int80(20, 0, 0, 0) == getpid();
    ready_and_wait();
    CHECK_FILLED(memory, 16 * PAGE, 1);
    if (!there) {
        note("this kernel has no 32-bit system calls");
        pass();
    }
    long result = int80(MADVISE_32, (long)memory, 4 * PAGE, MADV_DONTNEED);
    CHECK(result == 0, "32-bit madvise: expected 0, saw %ld", result);
    CHECK_ZEROS(memory, 4 * PAGE);
    CHECK_FILLED_FROM(memory + 4 * PAGE, 12 * PAGE, 1, 4 * PAGE);
    pass();
}
