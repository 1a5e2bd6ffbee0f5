// A ring is kernel state with requests in flight.
#include "check.h"
#include <linux/io_uring.h>

int main(void) {
    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) {
        note("UNAVAILABLE io_uring_setup: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    ready_and_wait();
    MUST(syscall(SYS_io_uring_enter, ring, 0, 0, 0, NULL, 0));
    pass();
}
