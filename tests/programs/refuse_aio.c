// A context of Linux AIO: nobody outside the kernel knows whether a request is under way in it.
#include "check.h"
#include <linux/aio_abi.h>

int main(void) {
    aio_context_t context = 0;
    MUST(syscall(SYS_io_setup, 8, &context));
    ready_and_wait();
    struct io_event event;
    struct timespec now = {0, 0};
    CHECK(syscall(SYS_io_getevents, context, 0, 1, &event, &now) == 0, "io_getevents: %s", strerror(errno));
    MUST(syscall(SYS_io_destroy, context));
    pass();
}
