// What takes the place of discarded memory has its attributes: those from before the checkpoint,
// and those that the clone gave it itself.
#include "check.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

#define BYTES (16 * PAGE)

// The flags of the mapping at `at`, as smaps has them, with a blank before and behind each.
static const char *flags_of(const void *at) {
    static char line[4096];
    unsigned long start, end;
    int is_inside = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    CHECK(smaps, "smaps: %s", strerror(errno));
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && strchr("0123456789abcdef", line[0]))
            is_inside = (unsigned long)at >= start && (unsigned long)at < end;
        else if (is_inside && !strncmp(line, "VmFlags:", 8))
            break;
    }
    fclose(smaps);
    return line;
}

static void has(const void *at, const char *what, int wanted, const char *flag) {
    char word[8];
    snprintf(word, sizeof word, " %s ", flag);
    const char *flags = flags_of(at);
    CHECK(!!strstr(flags, word) == wanted, "%s: expected%s flag %s, saw %s", what,
          wanted ? "" : " no", flag, flags);
}

static uint8_t *advised(unsigned seed, int first, int second) {
    uint8_t *at = filled(BYTES, seed);
    if (first >= 0) MUST(raw_madvise(at, BYTES, first));
    if (second >= 0) MUST(raw_madvise(at, BYTES, second));
    return at;
}

// A few pages in the middle, all around, and what is left.
static void keeps(uint8_t *at, unsigned seed, const char *what, const char *first,
                  const char *second) {
    has(at, what, 1, first);
    DONTNEED(at + 4 * PAGE, 2 * PAGE);
    CHECK_FILLED(at, 4 * PAGE, seed);
    CHECK_ZEROS(at + 4 * PAGE, 2 * PAGE);
    CHECK_FILLED_FROM(at + 6 * PAGE, BYTES - 6 * PAGE, seed, 6 * PAGE);
    for (size_t page = 3; page < 7; page++) {
        has(at + page * PAGE, what, 1, first);
        has(at + page * PAGE, what, 1, second);
    }
}

static void not_in_children(uint8_t *at) {
    pid_t child = MUST(fork());
    if (!child) {
        unsigned char in;
        for (size_t page = 0; page < 8; page++) REFUSED(mincore(at + page * PAGE, PAGE, &in), ENOMEM);
        _exit(0);
    }
    reap(child);
}

static void grows(uint8_t *at, unsigned seed, const char *flag) {
    uint8_t *grown = raw_mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE, NULL);
    CHECK(grown != MAP_FAILED, "mremap: %s", strerror(errno));
    CHECK_FILLED(grown, BYTES, seed);
    CHECK_ZEROS(grown + BYTES, BYTES);
    has(grown, "grown", 1, flag);
}

static void locked(uint8_t *at, unsigned seed) {
    REFUSED(raw_madvise(at, PAGE, MADV_DONTNEED), EINVAL);
    REFUSED(raw_madvise(at, PAGE, MADV_FREE), EINVAL);
    CHECK_FILLED(at, BYTES, seed);
    MUST(raw_madvise(at + PAGE, PAGE, MADV_DONTNEED_LOCKED));
    CHECK_FILLED(at, PAGE, seed);
    CHECK_ZEROS(at + PAGE, PAGE);
    CHECK_FILLED_FROM(at + 2 * PAGE, BYTES - 2 * PAGE, seed, 2 * PAGE);
    has(at + PAGE, "locked", 1, "lo");
}

// Children do not have their parent's locks.
static void unlocked_in_children(uint8_t *at) {
    pid_t child = MUST(fork());
    if (!child) {
        DONTNEED(at + 8 * PAGE, PAGE);
        CHECK_ZEROS(at + 8 * PAGE, PAGE);
        _exit(0);
    }
    reap(child);
}

static void sealed(uint8_t *at, unsigned seed) {
    MUST(mprotect(at + 8 * PAGE, 8 * PAGE, PROT_READ));
    if (syscall(SYS_mseal, at, BYTES, 0)) return note("mseal: %s", strerror(errno));
    DONTNEED(at + PAGE, PAGE);
    CHECK_ZEROS(at + PAGE, PAGE);
    CHECK_FILLED_FROM(at + 2 * PAGE, BYTES - 2 * PAGE, seed, 2 * PAGE);
    REFUSED(raw_madvise(at + 9 * PAGE, PAGE, MADV_DONTNEED), EPERM);
    CHECK_FILLED_FROM(at + 8 * PAGE, 8 * PAGE, seed, 8 * PAGE);
    has(at + PAGE, "sealed", 1, "sl");
}

// The key stays on what takes the place of discarded memory, and keeps the thread from it.
static void guarded_later(uint8_t *at, unsigned seed) {
    int key = pkey_alloc(0, 0);
    if (key < 0) return note("protection keys: %s", strerror(errno));
    MUST(pkey_mprotect(at, BYTES, PROT_READ | PROT_WRITE, key));
    DONTNEED(at + 4 * PAGE, 2 * PAGE);
    CHECK_FILLED(at, 4 * PAGE, seed);
    CHECK_ZEROS(at + 4 * PAGE, 2 * PAGE);
    MUST(pkey_set(key, PKEY_DISABLE_ACCESS));
    int sink[2];
    MUST(pipe(sink));
    // The kernel reads with the thread's rights.
    for (size_t page = 3; page < 7; page++) REFUSED(write(sink[1], at + page * PAGE, 1), EFAULT);
    MUST(pkey_set(key, 0));
    for (size_t page = 3; page < 7; page++) MUST(write(sink[1], at + page * PAGE, 1));
}

int main(void) {
    uint8_t *forked = advised(1, MADV_DONTFORK, MADV_DONTDUMP);
    uint8_t *hinted = advised(2, MADV_DONTDUMP, MADV_NOHUGEPAGE);
    uint8_t *growing = advised(3, MADV_DONTDUMP, -1);
    uint8_t *kept = advised(4, -1, -1);
    MUST(mlock(kept, BYTES));
    anonymous(PAGE); // keeps the kernel from joining the neighbours
    uint8_t *plain = advised(5, MADV_DONTDUMP, -1), *later = advised(6, -1, -1);
    uint8_t *kept_later = advised(7, -1, -1), *to_seal = advised(8, -1, -1);
    uint8_t *to_guard = advised(9, -1, -1);
    ready_and_wait();
    keeps(forked, 1, "not forked, not dumped", "dc", "dd");
    not_in_children(forked);
    keeps(hinted, 2, "not dumped, no huge pages", "dd", "nh");
    grows(growing, 3, "dd");
    unlocked_in_children(kept);
    locked(kept, 4);
    MUST(raw_madvise(plain, BYTES, MADV_DODUMP));
    DONTNEED(plain + PAGE, PAGE);
    has(plain + PAGE, "dumped again", 0, "dd");
    MUST(raw_madvise(later, BYTES, MADV_DONTDUMP));
    MUST(raw_madvise(later, BYTES, MADV_DONTFORK));
    keeps(later, 6, "later not dumped, not forked", "dd", "dc");
    MUST(mlock(kept_later, BYTES));
    locked(kept_later, 7);
    unlocked_in_children(kept_later);
    MUST(munlock(kept_later, BYTES));
    DONTNEED(kept_later, BYTES);
    CHECK_ZEROS(kept_later, BYTES);
    sealed(to_seal, 8);
    guarded_later(to_guard, 9);
    pass();
}
