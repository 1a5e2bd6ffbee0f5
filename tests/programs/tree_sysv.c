// Segments of System V that a parent and its children have attached, and one that was removed.
#include "sysv.h"
#include "tree.h"

static int kept_id, removed_id, childs_id;
static uint8_t *kept, *removed;

static void inheritor(void) {
    in_place();
    CHECK_FILLED(kept, 3 * PAGE, 1);
    CHECK_FILLED(removed, PAGE, 2);
    kept[0] = 200;
    MUST(shmdt(removed));
}

// Has attached both somewhere else, and one that its parent has not.
static void attacher(void) {
    MUST(shmdt(kept));
    kept = attach(kept_id, NULL, SHM_RDONLY);
    uint8_t *mine = attach(childs_id, NULL, 0);
    fill(mine, PAGE, 3);
    in_place();
    CHECK(kept[1] == 100, "expected to see the parent's write, saw %d", kept[1]);
    CHECK_FILLED(mine, PAGE, 3);
    expect_attached(childs_id, 1);
    in_place();
}

int main(void) {
    kept_id = make_segment(IPC_PRIVATE, 3 * PAGE, 0600);
    removed_id = make_segment(IPC_PRIVATE, PAGE, 0600);
    childs_id = make_segment(IPC_PRIVATE, PAGE, 0600);
    kept = attach(kept_id, NULL, 0);
    removed = attach(removed_id, NULL, 0);
    fill(kept, 3 * PAGE, 1);
    fill(removed, PAGE, 2);
    struct child inherits = child(inheritor), attaches = child(attacher);
    MUST(shmctl(removed_id, IPC_RMID, NULL));
    MUST(shmctl(childs_id, IPC_RMID, NULL));
    ready_and_wait();
    expect_attached(kept_id, 3);
    expect_attached(removed_id, 3);
    tell_and_reap(inherits);
    CHECK(kept[0] == 200, "expected to see the child's write, saw %d", kept[0]);
    expect_attached(removed_id, 2);
    kept[1] = 100;
    tell(attaches);
    char byte;
    CHECK(read(attaches.socket, &byte, 1) == 1, "the child has failed");
    tell_and_reap(attaches);
    await_attached(childs_id, 0);
    CHECK(described(childs_id).shm_segsz == 0, "expected the child's segment to have ended with it");
    await_attached(removed_id, 1);
    MUST(shmdt(removed));
    CHECK(described(removed_id).shm_segsz == 0, "expected the removed segment to be gone");
    MUST(shmctl(kept_id, IPC_RMID, NULL));
    pass();
}
