// Memory of many hops: on 'h' the process, a clone of one that has done the same, writes what belongs to its own hop;
// on 'v' it compares every byte. On 'A' + N it reads pages that hop N was the last to write, and no others.
#include "check.h"

#define HOPS 24UL
#define ROUNDS 8UL
#define BLOCK (32 * PAGE)

static unsigned hop;
// Each hop writes every HOPS-th page; a block, and half of the block before; a page of the others.
static uint8_t *woven, *blocks, *kept_from_fork, *dropped, *moved;

static void check_woven(unsigned of) {
    for (size_t page = of; page < HOPS * ROUNDS; page += HOPS)
        CHECK_FILLED_FROM(woven + page * PAGE, PAGE, of <= hop ? of : 0, page * PAGE);
}

static void fill_at(uint8_t *memory, size_t from, size_t bytes, unsigned seed) {
    for (size_t at = from; at < from + bytes; at++) memory[at] = pattern(at, seed);
}

static void next_hop(void) {
    hop++;
    CHECK(hop < HOPS, "the program has %lu hops", HOPS);
    for (size_t page = hop; page < HOPS * ROUNDS; page += HOPS)
        fill_at(woven, page * PAGE, PAGE, hop);
    fill_at(blocks, hop * BLOCK, BLOCK, hop);
    fill_at(blocks, (hop - 1) * BLOCK, BLOCK / 2, hop);
    fill_at(kept_from_fork, hop * PAGE, PAGE, hop);
    MUST(raw_madvise(dropped + hop * PAGE, PAGE, MADV_DONTNEED));
    uint8_t *place = anonymous(HOPS * PAGE);
    void *now = mremap(moved, HOPS * PAGE, HOPS * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    CHECK(now == place, "mremap: %s", strerror(errno));
    moved = now;
    fill_at(moved, hop * PAGE, PAGE, hop);
}

// The last hop that has written something of its own there.
static unsigned of_block(size_t block, int is_first_half) {
    if (is_first_half && block + 1 <= hop) return block + 1;
    return block <= hop ? block : 0;
}

static void check_all(void) {
    for (unsigned of = 0; of < HOPS; of++) check_woven(of);
    for (size_t at = 0; at < HOPS * BLOCK; at += BLOCK / 2) {
        unsigned of = of_block(at / BLOCK, at % BLOCK == 0);
        CHECK_FILLED_FROM(blocks + at, BLOCK / 2, of, at);
    }
    for (size_t page = 0; page < HOPS; page++) {
        unsigned of = page <= hop ? page : 0;
        CHECK_FILLED_FROM(kept_from_fork + page * PAGE, PAGE, of, page * PAGE);
        CHECK_FILLED_FROM(moved + page * PAGE, PAGE, of, page * PAGE);
        if (page >= 1 && page <= hop)
            CHECK_ZEROS(dropped + page * PAGE, PAGE);
        else
            CHECK_FILLED_FROM(dropped + page * PAGE, PAGE, 0, page * PAGE);
    }
}

int main(void) {
    woven = filled(HOPS * ROUNDS * PAGE, 0);
    blocks = filled(HOPS * BLOCK, 0);
    kept_from_fork = filled(HOPS * PAGE, 0);
    dropped = filled(HOPS * PAGE, 0);
    moved = filled(HOPS * PAGE, 0);
    MUST(raw_madvise(kept_from_fork, HOPS * PAGE, MADV_DONTFORK));
    for (char command = ready_and_wait(); command != '\n';) {
        if (command == 'h') {
            next_hop();
        } else if (command == 'v') {
            check_all();
        } else {
            check_woven(command - 'A');
        }
        if (write(1, "OK\n", 3) != 3) _exit(3);
        MUST(read(0, &command, 1));
    }
    check_all();
    printf("HOP %u\n", hop);
    fflush(stdout);
    pass();
}
