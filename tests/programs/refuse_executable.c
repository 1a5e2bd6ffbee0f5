// A program whose executable no clone can have: it may not be executed any more, or is in memory.
#include "check.h"
#include <sys/stat.h>

static int copy_to(int fd) {
    char bytes[1 << 16];
    ssize_t got;
    int from = MUST(open("/proc/self/exe", O_RDONLY));
    while ((got = read(from, bytes, sizeof bytes)) > 0) CHECK(write(fd, bytes, got) == got, "write: %s", strerror(errno));
    close(from);
    return fd;
}

int main(int count, char **arguments) {
    int in_memory = getenv("IN_MEMORY") != NULL;
    if (count == 1) {
        int fd = copy_to(in_memory ? MUST(memfd_create("program", MFD_CLOEXEC)) : MUST(open("copy", O_RDWR | O_CREAT, 0755)));
        if (in_memory) {
            fexecve(fd, (char *[]){arguments[0], "again", NULL}, environ);
        } else {
            close(fd);
            execv("./copy", (char *[]){"./copy", "again", NULL});
        }
        FAIL("exec: %s", strerror(errno));
    }
    if (!in_memory) MUST(chmod("copy", 0644));
    ready_and_wait();
    pass();
}
