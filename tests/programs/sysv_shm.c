// Segments of System V: a clone has its own, under the ids and keys that the parent knows.
#include "sysv.h"

#define PAGES 600

static uint8_t *whole, *twin, *reading, *removed, *locked, *odd, *moved;
static int id, removed_id, again_id, locked_id, odd_id;
static key_t key;

static void check_name(uint8_t *at, const char *name) {
    char line[512], start[32];
    snprintf(start, sizeof start, "%lx-", (long)at);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (!strncmp(line, start, strlen(start))) {
            CHECK(strstr(line, name), "maps: expected %s, saw %s", name, line);
            fclose(maps);
            return;
        }
    FAIL("maps: no line for %p", at);
}

static void check_permissions(void) {
    struct shmid_ds told = described(id);
    CHECK(told.shm_segsz == PAGES * PAGE - 100, "size: saw %zu", told.shm_segsz);
    CHECK(told.shm_perm.__key == key, "key: saw %#x", told.shm_perm.__key);
    CHECK((told.shm_perm.mode & 0777) == 0640, "mode: saw %o", told.shm_perm.mode);
    CHECK(told.shm_perm.uid == 7 && told.shm_perm.gid == 8, "owner: saw %u, %u", told.shm_perm.uid, told.shm_perm.gid);
    CHECK(told.shm_perm.cuid == 5 && told.shm_perm.cgid == 6, "creator: saw %u, %u", told.shm_perm.cuid, told.shm_perm.cgid);
    CHECK(MUST(shmget(key, 0, 0)) == id, "the key leads to another segment");
    CHECK(described(locked_id).shm_perm.mode & SHM_LOCKED, "expected a locked segment");
}

static void check_sharing(void) {
    whole[101 * PAGE] ^= 0x55;
    CHECK(twin[101 * PAGE] == whole[101 * PAGE], "twin: expected to see the write");
    CHECK(reading[101 * PAGE] == whole[101 * PAGE], "reading: expected to see the write");
    REFUSED(mprotect(reading, PAGE, PROT_READ | PROT_WRITE), EACCES);
    pid_t child = MUST(fork());
    if (!child) {
        twin[5] = 42;
        expect_attached(id, 6);
        _exit(0);
    }
    reap(child);
    CHECK(whole[5] == 42, "write by a child: expected 42, saw %d", whole[5]);
    DONTNEED(whole, 10 * PAGE);
    CHECK_FILLED_FROM(whole + PAGE, 9 * PAGE, 1, PAGE);
    MUST(raw_madvise(whole + 100 * PAGE, PAGE, MADV_REMOVE));
    CHECK_ZEROS(twin + 100 * PAGE, PAGE);
}

// A segment that was removed ends with its last attachment, and no key leads to it.
static void check_removed(void) {
    CHECK_FILLED(removed, 2 * PAGE, 3);
    await_attached(removed_id, 1);
    CHECK(described(removed_id).shm_perm.mode & SHM_DEST, "expected a removed segment");
    CHECK(MUST(shmget(key + 1, 0, 0)) == again_id, "the key leads to the removed segment");
    uint8_t *more = attach(removed_id, NULL, 0);
    CHECK_FILLED(more, 2 * PAGE, 3);
    MUST(shmdt(more));
    MUST(shmdt(removed));
    REFUSED(shmat(removed_id, NULL, 0), EINVAL);
}

// Parts of one attachment are detached together, others not.
static void check_parts(void) {
    CHECK_FILLED(odd, PAGE, 4);
    CHECK_FILLED_FROM(odd + 3 * PAGE, 2 * PAGE, 4, 3 * PAGE);
    CHECK_FILLED_FROM(moved, PAGE, 4, 2 * PAGE);
    await_attached(odd_id, 4);
    MUST(mprotect(odd + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE));
    odd[3 * PAGE] = 9;
    MUST(shmdt(odd));
    expect_attached(odd_id, 1);
    CHECK(raw_mremap(odd, 0, PAGE, MREMAP_MAYMOVE, NULL) == MAP_FAILED, "expected nothing at %p", odd);
    CHECK_FILLED_FROM(moved, PAGE, 4, 2 * PAGE);
    uint8_t *all = attach(odd_id, odd, 0);
    CHECK(all == odd && odd[3 * PAGE] == 9, "attached again: saw %p, %d", all, odd[3 * PAGE]);
}

static void make_parts(void) {
    odd_id = make_segment(IPC_PRIVATE, 5 * PAGE, 0600);
    odd = attach(odd_id, NULL, 0);
    fill(odd, 5 * PAGE, 4);
    MUST(mprotect(odd + 3 * PAGE, PAGE, PROT_READ));
    moved = anonymous(PAGE);
    CHECK(raw_mremap(odd + 2 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved, "mremap: %s",
          strerror(errno));
    MUST(munmap(odd + PAGE, PAGE));
    expect_attached(odd_id, 4);
}

static void make_removed(void) {
    removed_id = make_segment(key + 1, 2 * PAGE, 0600);
    removed = attach(removed_id, NULL, 0);
    fill(removed, 2 * PAGE, 3);
    MUST(shmctl(removed_id, IPC_RMID, NULL));
    again_id = make_segment(key + 1, PAGE, 0600);
    attach(again_id, NULL, 0)[0] = 1;
}

int main(void) {
    remove_at_the_end();
    key = 0x5f000000 | getpid() << 4;
    MUST(setegid(6));
    MUST(seteuid(5));
    id = make_segment(key, PAGES * PAGE - 100, 0600);
    MUST(seteuid(0));
    MUST(setegid(0));
    struct shmid_ds set = described(id);
    set.shm_perm.uid = 7, set.shm_perm.gid = 8, set.shm_perm.mode = 0640;
    MUST(shmctl(id, IPC_SET, &set));
    whole = attach(id, NULL, 0);
    fill(whole, PAGES * PAGE - 100, 1);
    twin = attach(id, NULL, 0);
    reading = attach(id, NULL, SHM_RDONLY);
    locked_id = make_segment(IPC_PRIVATE, PAGE, 0600);
    locked = attach(locked_id, NULL, 0);
    MUST(shmctl(locked_id, SHM_LOCK, NULL));
    make_removed();
    make_parts();
    ready_and_wait();
    CHECK_FILLED(whole, PAGES * PAGE - 100, 1);
    expect_attached(id, 3);
    char name[32];
    snprintf(name, sizeof name, "/SYSV%08x (deleted)", key);
    check_name(whole, name);
    snprintf(name, sizeof name, "/SYSV%08x (deleted)", key + 1);
    check_name(removed, name);
    check_permissions();
    check_sharing();
    check_removed();
    check_parts();
    int fresh = make_segment(IPC_PRIVATE, PAGE, 0600);
    MUST(shmctl(fresh, IPC_RMID, NULL));
    for (int *each = (int[]){id, locked_id, again_id, odd_id, -1}; *each >= 0; each++)
        MUST(shmctl(*each, IPC_RMID, NULL));
    pass();
}
