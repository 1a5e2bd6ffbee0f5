// A file so deep that no path of one call leads to it.
#include "check.h"
#include <sys/stat.h>

#define DEPTH 20

int main(void) {
    char name[250];
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = 0;
    int top = MUST(open(".", O_PATH | O_DIRECTORY)), here = top;
    for (int depth = 0; depth < DEPTH; depth++) {
        if (mkdirat(here, name, 0700) < 0) CHECK(errno == EEXIST, "mkdirat: %s", strerror(errno));
        int next = MUST(openat(here, name, O_PATH | O_DIRECTORY));
        if (here != top) close(here);
        here = next;
    }
    int fd = MUST(openat(here, "file", O_CREAT | O_RDWR, 0600));
    close(here);
    ready_and_wait();
    CHECK(MUST(write(fd, "x", 1)) == 1, "write");
    pass();
}
