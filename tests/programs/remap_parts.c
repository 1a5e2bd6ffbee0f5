// mremap of memory that was one mapping before the checkpoint, whatever parts a clone has made of it. With the byte
// s, also of memory that cannot move because a part of it is sealed.
#include "fault.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define NR_MSEAL 462

#define BYTES MIB
#define LARGE (16 * MIB)
#define FIXED (MREMAP_MAYMOVE | MREMAP_FIXED)

// Most memory that this process has had, in bytes.
static size_t peak(void) {
    char text[4096];
    int fd = MUST(open("/proc/self/status", O_RDONLY));
    ssize_t got = MUST(read(fd, text, sizeof text - 1));
    close(fd);
    text[got] = 0;
    char *line = strstr(text, "VmHWM:");
    CHECK(line != NULL, "no VmHWM in /proc/self/status");
    return strtoul(line + 6, NULL, 10) << 10;
}

static void remapped(uint8_t *at, uint8_t *expected, const char *what) {
    CHECK(at != MAP_FAILED, "%s: %s", what, strerror(errno));
    CHECK(expected == NULL || at == expected, "%s: expected %p, saw %p", what, expected, at);
}

// It moves, and grows again where it is then: nothing is copied.
static void grow(uint8_t *at) {
    fill(at, LARGE / 2, 1);
    size_t before = peak();
    for (size_t bytes = LARGE; bytes < 3 * LARGE; bytes += LARGE) {
        at = raw_mremap(at, bytes, bytes + LARGE, MREMAP_MAYMOVE, NULL);
        remapped(at, NULL, "growing");
        CHECK_FILLED(at, LARGE / 2, 1);
        CHECK_ZEROS(at + LARGE / 2, bytes + LARGE / 2);
    }
    size_t more = peak() - before;
    CHECK(more < LARGE / 4, "growing has taken %zu bytes", more);
    fill(at + 2 * LARGE, LARGE / 16, 2);
    CHECK_FILLED(at, LARGE / 2, 1);
    CHECK_FILLED(at + 2 * LARGE, LARGE / 16, 2);
}

// Mappings of a range, as the kernel has them.
static int mappings(uint8_t *at, size_t bytes) {
    static char text[1 << 20];
    int fd = MUST(open("/proc/self/maps", O_RDONLY)), count = 0;
    size_t all = 0;
    for (ssize_t got; (got = MUST(read(fd, text + all, sizeof text - 1 - all))) > 0;) all += got;
    close(fd);
    text[all] = 0;
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        unsigned long from, to;
        CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2, "unreadable: %.40s", line);
        count += from < (unsigned long)at + bytes && (unsigned long)at < to;
    }
    return count;
}

// Again and again: sooner or later the kernel alone does it.
static void grow_often(uint8_t *at) {
    fill(at, BYTES, 14);
    for (size_t bytes = BYTES; bytes < BYTES + 64 * PAGE; bytes += PAGE) {
        at = raw_mremap(at, bytes, bytes + PAGE, MREMAP_MAYMOVE, NULL);
        remapped(at, NULL, "growing often");
        at[bytes] = 1;
    }
    CHECK_FILLED(at, BYTES, 14);
    for (size_t page = 0; page < 64; page++)
        CHECK(at[BYTES + page * PAGE] == 1, "page %zu of those that it has grown by is lost", page);
    int count = mappings(at, BYTES + 64 * PAGE);
    CHECK(count == 1, "memory that grows often has %d mappings", count);
}

static void grow_in_place(uint8_t *at) {
    fill(at, BYTES, 3);
    remapped(raw_mremap(at, BYTES, 2 * BYTES, 0, NULL), at, "growing in place");
    CHECK_FILLED(at, BYTES, 3);
    CHECK_ZEROS(at + BYTES, BYTES);
    fill(at, 2 * BYTES, 4);
    CHECK_FILLED(at, 2 * BYTES, 4);
    // Now there is no room.
    REFUSED(raw_mremap(at, 2 * BYTES, 64 * BYTES, 0, NULL), ENOMEM);
    CHECK_FILLED(at, 2 * BYTES, 4);
}

static void move_to(uint8_t *from, size_t bytes, size_t new_bytes, unsigned seed) {
    uint8_t *to = filled(4 * BYTES, 50);
    fill(from, bytes, seed);
    remapped(raw_mremap(from, bytes, new_bytes, FIXED, to), to, "moving");
    size_t kept = bytes < new_bytes ? bytes : new_bytes;
    CHECK_FILLED(to, kept, seed);
    CHECK_ZEROS(to + kept, new_bytes - kept);
    CHECK_FILLED_FROM(to + new_bytes, 4 * BYTES - new_bytes, 50, new_bytes);
    for (size_t page = 0; page < bytes; page += 64 * PAGE)
        CHECK(fault_of_read(from + page) == SIGSEGV, "the old place is there at %#zx", page);
    // It can be moved again, and parts of it can.
    uint8_t *again = anonymous(4 * BYTES);
    remapped(raw_mremap(to + PAGE, new_bytes - 2 * PAGE, new_bytes - 2 * PAGE, FIXED, again), again,
             "moving a part");
    CHECK_FILLED_FROM(again, kept - 2 * PAGE, seed, PAGE);
    CHECK_FILLED(to, PAGE, seed);
    CHECK(fault_of_read(to + PAGE) == SIGSEGV, "what was moved is there");
}

static void leave_behind(uint8_t *from) {
    fill(from, BYTES, 5);
    uint8_t *at = raw_mremap(from, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    remapped(at, NULL, "leaving an empty range");
    CHECK_FILLED(at, BYTES, 5);
    CHECK_ZEROS(from, BYTES);
    fill(from, BYTES, 6);
    CHECK_FILLED(at, BYTES, 5);
}

// A child has mappings whose pages are those of its parent.
static void fork_and_grow(uint8_t *at) {
    fill(at, BYTES, 7);
    pid_t child = MUST(fork());
    if (!child) {
        fill(at, BYTES / 2, 8);
        uint8_t *grown = raw_mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE, NULL);
        remapped(grown, NULL, "growing in a child");
        CHECK_FILLED(grown, BYTES / 2, 8);
        CHECK_FILLED_FROM(grown + BYTES / 2, BYTES / 2, 7, BYTES / 2);
        CHECK_ZEROS(grown + BYTES, BYTES);
        _exit(0);
    }
    reap(child);
    CHECK_FILLED(at, BYTES, 7);
    uint8_t *grown = raw_mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE, NULL);
    remapped(grown, NULL, "growing after a fork");
    CHECK_FILLED(grown, BYTES, 7);
    CHECK_ZEROS(grown + BYTES, BYTES);
}

// Mappings that the program itself has made different are not one: the kernel grows none of them.
static void are_not_one(uint8_t *at) {
    fill(at, BYTES, 9);
    MUST(raw_madvise(at + BYTES / 2, BYTES / 2, MADV_DONTFORK));
    REFUSED(raw_mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE, NULL), EFAULT);
    REFUSED(raw_mremap(at, BYTES, 2 * BYTES, 0, NULL), EFAULT);
    CHECK_FILLED(at, BYTES, 9);
    MUST(mprotect(at, BYTES / 4, PROT_READ));
    REFUSED(raw_mremap(at, BYTES / 2, 2 * BYTES, MREMAP_MAYMOVE, NULL), EFAULT);
    // What is wrong stays wrong, and has no effect.
    REFUSED(raw_mremap(at, BYTES, BYTES, FIXED, at + BYTES / 2), EINVAL);
    REFUSED(raw_mremap(at, BYTES, BYTES, FIXED, at + BYTES + 1), EINVAL);
    REFUSED(raw_mremap(at, BYTES, BYTES, MREMAP_FIXED, at + 8 * BYTES), EINVAL);
    REFUSED(raw_mremap(at, BYTES, BYTES + PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL), EINVAL);
    CHECK_FILLED(at, BYTES, 9);
}

// The middle of it was there before; it is discarded between what was touched on both sides since.
static void grow_discarded(uint8_t *at) {
    fill(at, BYTES, 10);
    fill(at + 2 * BYTES, BYTES, 11);
    DONTNEED(at + BYTES, BYTES);
    uint8_t *grown = raw_mremap(at, 3 * BYTES, 4 * BYTES, MREMAP_MAYMOVE, NULL);
    remapped(grown, NULL, "growing what was discarded in the middle");
    CHECK_FILLED(grown, BYTES, 10);
    CHECK_ZEROS(grown + BYTES, BYTES);
    CHECK_FILLED(grown + 2 * BYTES, BYTES, 11);
    CHECK_ZEROS(grown + 3 * BYTES, BYTES);
}

// Refused in the middle: all of it is where it was.
static void stay_sealed(uint8_t *at) {
    fill(at, BYTES, 12);
    uint8_t *to = filled(2 * BYTES, 52);
    uint8_t *sealed = at + BYTES / 2;
    if (syscall(NR_MSEAL, sealed, PAGE, 0) != 0) {
        note("memory cannot be sealed: %s", strerror(errno));
        return;
    }
    REFUSED(raw_mremap(at, BYTES, BYTES, FIXED, to), EPERM);
    CHECK_FILLED(at, BYTES, 12);
    fill(at, BYTES, 13);
    CHECK_FILLED(at, BYTES, 13);
}

int main(void) {
    uint8_t *sealed = anonymous(BYTES);
    uint8_t *large = anonymous(LARGE);
    uint8_t *large_begun = anonymous(LARGE);
    large_begun[0] = 1;
    uint8_t *same = anonymous(BYTES);
    uint8_t *less = anonymous(BYTES);
    uint8_t *more = anonymous(BYTES);
    uint8_t *begun = anonymous(BYTES);
    begun[0] = 1;
    uint8_t *left = anonymous(BYTES);
    uint8_t *often = anonymous(BYTES);
    uint8_t *forked = anonymous(BYTES);
    uint8_t *different = anonymous(BYTES);
    uint8_t *discarded = anonymous(3 * BYTES);
    fill(discarded + BYTES, BYTES, 13);
    uint8_t *roomy = anonymous(2 * BYTES);
    catch_faults();
    MUST(munmap(roomy + BYTES, BYTES));
    char byte = ready_and_wait();
    grow_in_place(roomy);
    grow(large);
    grow(large_begun);
    move_to(same, BYTES, BYTES, 21);
    move_to(less, BYTES, BYTES / 2, 22);
    move_to(more, BYTES, 2 * BYTES, 23);
    move_to(begun, BYTES, BYTES, 24);
    leave_behind(left);
    grow_often(often);
    fork_and_grow(forked);
    are_not_one(different);
    grow_discarded(discarded);
    if (byte == 's') stay_sealed(sealed);
    pass();
}
