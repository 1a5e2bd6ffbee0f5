// Character devices that carry no state.
#include "check.h"

int main(void) {
    int null = MUST(open("/dev/null", O_WRONLY)), zero = MUST(open("/dev/zero", O_RDONLY));
    int random = MUST(open("/dev/urandom", O_RDONLY | O_CLOEXEC)), full = MUST(open("/dev/full", O_RDWR));
    uint8_t one[64], two[64];
    ready_and_wait();
    CHECK(write(null, one, 64) == 64, "/dev/null: %s", strerror(errno));
    memset(one, 1, 64);
    CHECK(read(zero, one, 64) == 64, "/dev/zero: %s", strerror(errno));
    CHECK_ZEROS(one, 64);
    CHECK(read(random, one, 64) == 64 && read(random, two, 64) == 64, "/dev/urandom: %s", strerror(errno));
    CHECK(memcmp(one, two, 64), "/dev/urandom: expected two draws to differ");
    CHECK(fcntl(random, F_GETFD) == FD_CLOEXEC, "/dev/urandom: expected close-on-exec");
    REFUSED(write(full, one, 1), ENOSPC);
    pass();
}
