// A clone forks: the child sees all memory, meets the same traps, and stays apart.
#include "check.h"

struct memory {
    uint8_t *read, *dropped, *grown, *written;
};

static void child_work(struct memory *m) {
    CHECK_FILLED(m->read, 64 * PAGE, 1);
    CHECK_FILLED(m->dropped, 64 * PAGE, 2);
    DONTNEED(m->dropped + 8 * PAGE, 8 * PAGE);
    CHECK_ZEROS(m->dropped + 8 * PAGE, 8 * PAGE);
    uint8_t *grown = raw_mremap(m->grown, 16 * PAGE, 64 * PAGE, MREMAP_MAYMOVE, NULL);
    CHECK(grown != MAP_FAILED, "mremap in the child: %s", strerror(errno));
    CHECK_FILLED(grown, 16 * PAGE, 3);
    CHECK_ZEROS(grown + 16 * PAGE, 48 * PAGE);
    fill(m->written, 16 * PAGE, 5);
    pid_t grandchild = MUST(fork());
    if (!grandchild) {
        CHECK_FILLED(m->written, 16 * PAGE, 5);
        CHECK_ZEROS(m->dropped + 8 * PAGE, 8 * PAGE);
        DONTNEED(m->read, 64 * PAGE);
        CHECK_ZEROS(m->read, 64 * PAGE);
        _exit(0);
    }
    reap(grandchild);
    CHECK_FILLED(m->read, 64 * PAGE, 1);
    _exit(0);
}

int main(void) {
    struct memory m = {filled(64 * PAGE, 1), filled(64 * PAGE, 2), filled(16 * PAGE, 3),
                       filled(16 * PAGE, 4)};
    ready_and_wait();
    for (int round = 0; round < 3; round++) {
        pid_t child = MUST(fork());
        if (!child) child_work(&m);
        reap(child);
        CHECK_FILLED(m.read, 64 * PAGE, 1);
        CHECK_FILLED(m.dropped, 64 * PAGE, 2);
        CHECK_FILLED(m.grown, 16 * PAGE, 3);
        CHECK_FILLED(m.written, 16 * PAGE, 4);
    }
    DONTNEED(m.dropped, 64 * PAGE);
    CHECK_ZEROS(m.dropped, 64 * PAGE);
    pass();
}
