// A file that begins as a region of objects does, mapped shared; a private mapping of it is not a client's.
#include "check.h"

int main(void) {
    int fd = MUST(open("region", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    MUST(ftruncate(fd, MIB));
    CHECK(write(fd, "FFREGION", 8) == 8, "write: %s", strerror(errno));
    void *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    close(fd);
    ready_and_wait();
    CHECK(!memcmp(at, "FFREGION", 8), "expected the region");
    pass();
}
