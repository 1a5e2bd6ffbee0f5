// After its checkpoint it registers its memory with a userfaultfd of its own.
#include "check.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

enum { PAGES = 16 };

int main(void) {
    uint8_t *memory = anonymous(PAGES * PAGE);
    fill(memory, PAGES * PAGE, 1);
    ready_and_wait();
    int own = MUST(syscall(SYS_userfaultfd, O_CLOEXEC | 1)); // UFFD_USER_MODE_ONLY
    struct uffdio_api api = {.api = UFFD_API};
    MUST(ioctl(own, UFFDIO_API, &api));
    struct uffdio_register asked = {
        .range = {.start = (unsigned long)memory, .len = PAGES * PAGE},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };
    MUST(ioctl(own, UFFDIO_REGISTER, &asked));
    CHECK_FILLED(memory, PAGES * PAGE, 1);
    memory[0] = 77;
    MUST(ioctl(own, UFFDIO_UNREGISTER, &asked.range));
    CHECK(memory[0] == 77, "expected 77, saw %d", memory[0]);
    note("REGISTERED");
    char byte = 0;
    CHECK(read(0, &byte, 1) == 1, "expected a byte, saw %s", strerror(errno));
    pass();
}
