// A page where farfork's own code lies in a clone.
#include "check.h"

int main(void) {
    void *window = (void *)0x4f0000000000;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    void *at = mmap(window, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(at == window, "a page in the window: %s", strerror(errno));
    ready_and_wait();
    pass();
}
