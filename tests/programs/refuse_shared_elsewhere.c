// Memory that another process has too: a clone's copy would be cut off from it. With LATIN, that
// process has a file mapped whose name is not UTF-8.
#include "check.h"
#include <signal.h>

static void map_latin(void) {
    int fd = MUST(open("caf\xe9", O_RDWR | O_CREAT | O_TRUNC, 0644));
    MUST(ftruncate(fd, PAGE));
    void *at = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    close(fd);
}

// Double fork: the other process is not our child, so that it is the sharing that gets refused.
static pid_t start_other(volatile pid_t *shared) {
    pid_t subject = getpid(), middle = MUST(fork());
    if (!middle) {
        if (!fork()) {
            if (getenv("LATIN")) map_latin();
            for (int fd = 0; fd < 3; fd++) close(fd);
            *shared = getpid();
            while (!kill(subject, 0)) usleep(10000);
        }
        _exit(0);
    }
    reap(middle);
    while (!*shared) usleep(1000);
    return *shared;
}

int main(void) {
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    pid_t other = start_other(at);
    ready_and_wait();
    MUST(kill(other, SIGKILL));
    pass();
}
