// A program unmounts its /proc, and leaves the root directory: what it discards is zeros all the same.
#include "check.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

static int is_there(void) { return !access("/proc/self", F_OK); }

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE unmounting needs root");
        ready_and_wait();
        pass();
    }
    // What a clone unmounts is its own; the parent has to take care for itself.
    MUST(unshare(CLONE_NEWNS));
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    MUST(mkdir("root", 0755));
    uint8_t *memory = filled(64 * PAGE, 1);
    ready_and_wait();
    CHECK(is_there(), "/proc: expected it to be mounted");
    for (int mounts = 0; mounts < 10 && is_there(); mounts++) MUST(umount2("/proc", MNT_DETACH));
    CHECK(!is_there(), "/proc: expected it to be gone");
    DONTNEED(memory, 8 * PAGE);
    CHECK_ZEROS(memory, 8 * PAGE);
    MUST(chroot("root"));
    MUST(chdir("/"));
    DONTNEED(memory + 8 * PAGE, 8 * PAGE);
    CHECK_ZEROS(memory + 8 * PAGE, 8 * PAGE);
    uint8_t *grown = raw_mremap(memory + 16 * PAGE, 48 * PAGE, 96 * PAGE, MREMAP_MAYMOVE, NULL);
    CHECK(grown != MAP_FAILED, "mremap: %s", strerror(errno));
    CHECK_FILLED_FROM(grown, 48 * PAGE, 1, 16 * PAGE);
    CHECK_ZEROS(grown + 48 * PAGE, 48 * PAGE);
    pass();
}
