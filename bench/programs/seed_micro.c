/* A function of any size that touches any part of its memory, as a parent of seeds: MITOSIS's micro-function.
 *
 *     seed_micro MIB PERMILLE
 *
 * It writes a number into each of its pages, says READY, and waits for a byte of standard input. The
 * process or clone that gets one adds up the first so many permille of the pages, and says it in one line: A, and
 * the sum. It ends when its input has no writer any more: clones of one herd share a pipe.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

static int say(const char *text, uint64_t number)
{
    char line[64];
    int bytes = snprintf(line, sizeof line, "%s %llu\n", text, (unsigned long long)number);
    return write(1, line, (size_t)bytes) == bytes;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    size_t pages = strtoul(arguments[1], NULL, 10) * (1024 * 1024 / PAGE);
    size_t touched = pages * strtoul(arguments[2], NULL, 10) / 1000;
    char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    for (size_t page = 0; page < pages; page++)
        *(uint64_t *)(memory + page * PAGE) = page;
    char byte;
    if (!say("READY", pages))
        return 1;
    ssize_t got = read(0, &byte, 1);
    if (got != 1)
        return got == 0 ? 0 : 1;
    uint64_t sum = 0;
    for (size_t page = 0; page < touched; page++)
        sum += *(volatile uint64_t *)(memory + page * PAGE);
    if (!say("A", sum))
        return 1;
    /* Not by reading: the bytes are for others. */
    struct pollfd input = { .fd = 0 };
    while (poll(&input, 1, -1) != 1)
        ;
    return 0;
}
