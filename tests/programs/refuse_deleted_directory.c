// An open directory that was removed leads nowhere in a clone.
#include "check.h"
#include <sys/stat.h>

int main(void) {
    MUST(mkdir("gone", 0755));
    int fd = MUST(open("gone", O_RDONLY | O_DIRECTORY));
    MUST(rmdir("gone"));
    ready_and_wait();
    REFUSED(openat(fd, "inside", O_CREAT | O_RDWR, 0644), ENOENT);
    pass();
}
