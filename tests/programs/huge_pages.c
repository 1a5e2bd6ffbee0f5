// Huge pages that are set aside, private and anonymous: a clone has its own, of the same size.
#include "check.h"

#define PAGES 4

static uint8_t *huge;

// Page size and protection of the mapping at `at`.
static void expect_mapping(uint8_t *at, const char *rights) {
    char line[512], start[32];
    int is_it = 0, size = 0;
    snprintf(start, sizeof start, "%lx-", (long)at);
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps) && !size) {
        if (strchr(line, '-') == line + strlen(start) - 1) is_it = !strncmp(line, start, strlen(start));
        if (is_it && strstr(line, "-") && strstr(line, "p 0")) CHECK(strstr(line, rights), "smaps: saw %s", line);
        if (is_it) sscanf(line, "KernelPageSize: %d kB", &size);
    }
    fclose(maps);
    CHECK(size == HUGE >> 10, "%p: expected huge pages, saw %d kB", at, size);
}

int main(void) {
    // Pages that are found when they are needed, and given back after that.
    FILE *surplus = fopen("/proc/sys/vm/nr_overcommit_hugepages", "w");
    if (!surplus || fputs("64", surplus) < 0 || fclose(surplus)) note("no right to find huge pages: %s", strerror(errno));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
    huge = mmap(NULL, PAGES * HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (huge == MAP_FAILED) {
        note("UNAVAILABLE huge pages: %s", strerror(errno));
        pass();
    }
    fill(huge, HUGE, 1);
    fill(huge + 2 * HUGE + 5 * PAGE, 3 * PAGE, 2);
    MUST(mprotect(huge + 3 * HUGE, HUGE, PROT_READ));
    ready_and_wait();
    expect_mapping(huge, "rw-p");
    expect_mapping(huge + 3 * HUGE, "r--p");
    CHECK_FILLED(huge, HUGE, 1);
    CHECK_ZEROS(huge + HUGE, HUGE + 5 * PAGE);
    CHECK_FILLED(huge + 2 * HUGE + 5 * PAGE, 3 * PAGE, 2);
    CHECK_ZEROS(huge + 3 * HUGE, HUGE);
    pid_t child = MUST(fork());
    if (!child) {
        huge[0] ^= 1;
        _exit(huge[1] == pattern(1, 1) ? 0 : 1);
    }
    reap(child);
    CHECK_FILLED(huge, HUGE, 1);
    // What is discarded is zeros, and no longer the checkpoint's.
    DONTNEED(huge, HUGE);
    CHECK_ZEROS(huge, HUGE);
    fill(huge, HUGE, 3);
    CHECK_FILLED(huge, HUGE, 3);
    pass();
}
