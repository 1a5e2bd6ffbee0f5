// Saves a checksum of every page of private writable memory it owns, except the stack in use,
// its own records, and the page with its rseq area, where the kernel writes the current CPU; and
// finds all of them again.
#include "check.h"
#include <sys/rseq.h>

#define AREAS 256
#define PAGES 65536

struct records {
    struct region areas[AREAS];
    size_t count;
    uint64_t sums[PAGES];
};

static uint64_t sum(const uint64_t *page) {
    uint64_t total = 14695981039346656037UL;
    for (size_t word = 0; word < PAGE / 8; word++) total = (total ^ page[word]) * 1099511628211UL;
    return total;
}

// libc's own writable data changes between the two walks: anonymous memory and the heap only.
static void list_areas(struct records *records) {
    char line[512];
    int maps = MUST(open("/proc/self/maps", O_RDONLY));
    while (records->count < AREAS && read_line(maps, line, sizeof line)) {
        struct region *region = &records->areas[records->count];
        if (!parse_anonymous(line, region) || !(region->prot & PROT_READ)) continue;
        if (region->start <= (uintptr_t)records && (uintptr_t)records < region->end) continue;
        records->count++;
    }
    close(maps);
}

static unsigned long rseq_page(void) {
    return ((unsigned long)__builtin_thread_pointer() + __rseq_offset) & -PAGE;
}

static void walk(struct records *records, int verify) {
    size_t page = 0;
    for (size_t i = 0; i < records->count; i++) {
        struct region *area = &records->areas[i];
        for (unsigned long at = area->start; at < area->end && page < PAGES; at += PAGE, page++) {
            if (at == rseq_page()) continue;
            uint64_t now = sum((const uint64_t *)at);
            if (verify)
                CHECK(records->sums[page] == now, "page %#lx: expected sum %#lx, saw %#lx", at,
                      records->sums[page], now);
            records->sums[page] = now;
        }
    }
}

int main(void) {
    struct records *records = (void *)anonymous((sizeof *records + PAGE - 1) & -PAGE);
    // Kept apart from what is summed: a neighbour with other rights is never merged with it.
    MUST(raw_madvise(records, sizeof *records, MADV_DONTDUMP));
    for (unsigned i = 0; i < 20; i++) filled((i * 37 + 1) * PAGE, i);
    for (unsigned i = 0; i < 200; i++) fill(malloc(i * 211 + 1), i * 211 + 1, i);
    list_areas(records);
    walk(records, 0);
    ready_and_wait();
    walk(records, 1);
    pass();
}
