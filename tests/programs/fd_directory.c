// Directories half read, and places that are only named (O_PATH): a directory, a symbolic link.
#include "check.h"
#include <dirent.h>
#include <sys/stat.h>

#define FILES 300

static char seen[FILES];

static int take(DIR *directory, int count) {
    int taken = 0;
    for (struct dirent *entry; taken < count && (entry = readdir(directory));) {
        int number;
        if (sscanf(entry->d_name, "file%d", &number) != 1) continue;
        CHECK(!seen[number], "entry %d: expected it once", number);
        seen[number] = 1;
        taken++;
    }
    return taken;
}

int main(void) {
    char name[64], target[64] = {0};
    mkdir("many", 0755);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "many/file%d", i);
        close(MUST(open(name, O_CREAT | O_RDWR, 0644)));
    }
    unlink("link");
    MUST(symlink("nowhere/at/all", "link"));
    // Small reads by the library, so that the kernel's position is somewhere in the middle.
    int raw = MUST(open("many", O_RDONLY | O_DIRECTORY));
    char entries[600];
    CHECK(syscall(SYS_getdents64, raw, entries, sizeof entries) > 0, "getdents64: %s", strerror(errno));
    DIR *directory = fdopendir(MUST(open("many", O_RDONLY | O_DIRECTORY)));
    CHECK(directory && take(directory, 100) == 100, "expected 100 entries");
    int link = MUST(open("link", O_PATH | O_NOFOLLOW)), place = MUST(open("many", O_PATH | O_DIRECTORY));
    off_t middle = MUST(lseek(raw, 0, SEEK_CUR));
    int flags[] = {fcntl(raw, F_GETFL), fcntl(link, F_GETFL), fcntl(place, F_GETFL)};
    ready_and_wait();
    CHECK(lseek(raw, 0, SEEK_CUR) == middle, "position: expected %ld, saw %ld", middle, lseek(raw, 0, SEEK_CUR));
    CHECK(take(directory, FILES) == FILES - 100, "expected the other entries, each once");
    for (int i = 0; i < FILES; i++) CHECK(seen[i], "entry %d: expected to see it", i);
    CHECK(readlinkat(link, "", target, sizeof target) == 14 && !strcmp(target, "nowhere/at/all"),
          "link: saw '%s' (%s)", target, strerror(errno));
    struct stat status;
    MUST(fstatat(place, "file7", &status, 0));
    int fds[] = {raw, link, place};
    for (int i = 0; i < 3; i++)
        CHECK(fcntl(fds[i], F_GETFL) == flags[i], "flags of %d: expected %#x, saw %#x", fds[i], flags[i],
              fcntl(fds[i], F_GETFL));
    pass();
}
