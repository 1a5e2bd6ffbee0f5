// Every capability, but only over a user namespace of its own: outside of it the same would be root.
#include "check.h"
#include <sched.h>
#include <pthread.h>

static void *idle(void *unused) {
    pause();
    return unused;
}

int main(void) {
    if (unshare(CLONE_NEWUSER)) {
        note("UNAVAILABLE user namespaces: %s", strerror(errno));
        pass();
    }
    pthread_t thread;
    pthread_create(&thread, NULL, idle, NULL);
    ready_and_wait();
    uint32_t header[2] = {0x20080522, 0}, data[6];
    MUST(syscall(SYS_capget, header, data));
    CHECK(data[0] >> 21 & 1, "expected CAP_SYS_ADMIN");
    pass();
}
