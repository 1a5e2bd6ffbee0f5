// A file on a tmpfs that only the process's mount namespace has.
#include "check.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE mounting needs root");
        pass();
    }
    MUST(unshare(CLONE_NEWNS));
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    mkdir("own", 0755);
    MUST(mount("own", "own", "tmpfs", 0, NULL));
    MUST(chdir("own"));
    int fd = MUST(open("file", O_RDWR | O_CREAT, 0644));
    ready_and_wait();
    CHECK(write(fd, "x", 1) == 1, "write: %s", strerror(errno));
    pass();
}
