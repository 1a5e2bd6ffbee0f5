// Shared anonymous memory: a clone has its own, shared by its own mappings and forked children.
#include "check.h"

#define PAGES 600

static uint8_t *shared(size_t bytes, int more) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | more, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    return at;
}

// A second mapping of the object under `at`, which mremap gives for an old size of zero.
static uint8_t *again(uint8_t *at, size_t bytes) {
    uint8_t *twin = raw_mremap(at, 0, bytes, MREMAP_MAYMOVE, NULL);
    CHECK(twin != MAP_FAILED, "mremap of a shared mapping: %s", strerror(errno));
    return twin;
}

static uint8_t *whole, *twin, *middle, *reading, *hidden, *sparse, *reserved, *cut;

static void check_name(uint8_t *at) {
    char line[512], start[32];
    snprintf(start, sizeof start, "%lx-", (long)at);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (!strncmp(line, start, strlen(start))) {
            CHECK(strstr(line, "/dev/zero (deleted)") && strstr(line, "s 0"), "maps: saw %s", line);
            fclose(maps);
            return;
        }
    FAIL("maps: no line for %p", at);
}

static void check_content(void) {
    CHECK_FILLED(whole, PAGES * PAGE, 1);
    CHECK_FILLED(twin, PAGES * PAGE, 1);
    CHECK_FILLED_FROM(middle, 3 * PAGE, 1, 100 * PAGE);
    CHECK_FILLED_FROM(reading, PAGE, 1, 7 * PAGE);
    CHECK_ZEROS(sparse, 300 * PAGE);
    CHECK_FILLED(sparse + 300 * PAGE, PAGE, 2);
    CHECK_FILLED(cut, PAGE, 4);
}

static void check_sharing(void) {
    whole[101 * PAGE] ^= 0x55;
    CHECK(middle[PAGE] == whole[101 * PAGE] && twin[101 * PAGE] == whole[101 * PAGE],
          "aliases: expected to see the write");
    pid_t child = MUST(fork());
    if (!child) {
        twin[5] = 42;
        _exit(middle[PAGE] == whole[101 * PAGE] ? 0 : 1);
    }
    reap(child);
    CHECK(whole[5] == 42, "write by a child: expected 42, saw %d", whole[5]);
}

static void check_calls(void) {
    // The rest of the object is there, although nothing mapped it.
    uint8_t *longer = raw_mremap(cut, PAGE, 4 * PAGE, MREMAP_MAYMOVE, NULL);
    CHECK(longer != MAP_FAILED, "growing: %s", strerror(errno));
    CHECK_FILLED(longer, 4 * PAGE, 4);
    // Discarding shared pages keeps them, and a hole is a hole for every mapping.
    DONTNEED(whole, 10 * PAGE);
    CHECK_FILLED_FROM(whole + PAGE, 9 * PAGE, 1, PAGE);
    MUST(raw_madvise(whole + 100 * PAGE, PAGE, MADV_REMOVE));
    CHECK_ZEROS(middle, PAGE);
    // A mapping that was protected is of writable memory still.
    MUST(mprotect(reading, PAGE, PROT_READ | PROT_WRITE));
    reading[1] = 7;
    CHECK(twin[7 * PAGE + 1] == 7, "write through a mapping made writable: expected to be seen");
}

int main(void) {
    whole = shared(PAGES * PAGE, 0);
    fill(whole, PAGES * PAGE, 1);
    twin = again(whole, PAGES * PAGE);
    middle = again(whole + 100 * PAGE, 3 * PAGE);
    reading = again(whole + 7 * PAGE, PAGE);
    MUST(mprotect(reading, PAGE, PROT_READ));
    hidden = shared(2 * PAGE, 0);
    fill(hidden, 2 * PAGE, 3);
    MUST(mprotect(hidden, 2 * PAGE, PROT_NONE));
    sparse = shared(512 * MIB, 0);
    fill(sparse + 300 * PAGE, PAGE, 2);
    reserved = shared(1UL << 40, MAP_NORESERVE);
    fill(reserved + (1UL << 39), PAGE, 5);
    cut = shared(4 * PAGE, 0);
    fill(cut, 4 * PAGE, 4);
    MUST(munmap(cut + PAGE, 3 * PAGE));
    ready_and_wait();
    check_content();
    CHECK_FILLED(reserved + (1UL << 39), PAGE, 5);
    check_name(whole);
    check_name(sparse);
    MUST(mprotect(hidden, 2 * PAGE, PROT_READ));
    CHECK_FILLED(hidden, 2 * PAGE, 3);
    check_sharing();
    check_calls();
    pass();
}
