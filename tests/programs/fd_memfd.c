// A memfd that only this process holds: its bytes, offset and seals are the process's own state.
// Carrying it and refusing it in words are both right; the table says which.
#include "check.h"

int main(void) {
    int fd = MUST(memfd_create("own", MFD_ALLOW_SEALING));
    uint8_t bytes[3 * PAGE], seen[3 * PAGE];
    fill(bytes, sizeof bytes, 1);
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes, "write: %s", strerror(errno));
    MUST(lseek(fd, 100, SEEK_SET));
    MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
    ready_and_wait();
    CHECK(lseek(fd, 0, SEEK_CUR) == 100, "offset: expected 100");
    CHECK(pread(fd, seen, sizeof seen, 0) == sizeof seen, "pread: %s", strerror(errno));
    CHECK_FILLED(seen, sizeof seen, 1);
    REFUSED(ftruncate(fd, 1), EPERM);
    pass();
}
