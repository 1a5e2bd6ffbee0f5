// A context of Linux AIO: nobody outside the kernel knows whether a request is under way in it. With
// KIND, one of which that is known, and which holds an event or is not as the kernel made it.
#include "aio.h"

static int is_kind(const char *kind) {
    return getenv("KIND") && !strcmp(getenv("KIND"), kind);
}

int main(void) {
    aio_context_t context = make_context(8);
    struct io_event event;
    if (is_kind("events")) submit_read(context, MUST(open("/dev/zero", O_RDONLY)), 1);
    if (is_kind("ring")) MUST(mprotect((void *)context, PAGE, PROT_READ));
    ready_and_wait();
    int expected = is_kind("events");
    CHECK(events(context, 0, &event) == expected, "expected %d events", expected);
    MUST(syscall(SYS_io_destroy, context));
    pass();
}
