// A named pipe that waits for writers from outside: the caller of restore says which one it is.
#include "check.h"
#include <sys/stat.h>

int main(void) {
    unlink("control");
    MUST(mkfifo("control", 0600));
    int fd = MUST(open("control", O_RDWR));
    CHECK(fd == 3, "expected fd 3, saw %d", fd);
    ready_and_wait();
    // Whatever it is now: a pipe of the parent's, a socket of a clone's.
    struct stat status;
    MUST(fstat(3, &status));
    CHECK(S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode), "fd 3: saw mode %o", status.st_mode);
    pass();
}
