// Pages that a handler fills: who would fill them in a clone?
#include "check.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

int main(void) {
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0) {
        note("UNAVAILABLE userfaultfd: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    struct uffdio_api api = {.api = UFFD_API};
    MUST(ioctl(fd, UFFDIO_API, &api));
    uint8_t *memory = anonymous(4 * PAGE);
    struct uffdio_register area = {{(uintptr_t)memory, 4 * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    MUST(ioctl(fd, UFFDIO_REGISTER, &area));
    ready_and_wait();
    uint8_t *source = filled(PAGE, 1);
    struct uffdio_copy copy = {.dst = (uintptr_t)memory, .src = (uintptr_t)source, .len = PAGE};
    MUST(ioctl(fd, UFFDIO_COPY, &copy));
    CHECK_FILLED(memory, PAGE, 1);
    pass();
}
