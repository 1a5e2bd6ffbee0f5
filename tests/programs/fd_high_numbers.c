// Descriptors with high numbers, nothing between.
#include "check.h"
#include <sys/resource.h>

int main(void) {
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    int last = limit.rlim_cur - 1;
    int fds[] = {last, last - 1, last / 2, 300};
    int pipes[2];
    MUST(pipe(pipes));
    for (int i = 0; i < 4; i++) CHECK(MUST(dup2(pipes[i % 2], fds[i])) == fds[i], "dup2 to %d", fds[i]);
    close(pipes[0]);
    close(pipes[1]);
    ready_and_wait();
    char text[8] = "";
    CHECK(write(fds[1], "up here", 7) == 7, "write to %d: %s", fds[1], strerror(errno));
    CHECK(read(fds[2], text, 8) == 7 && !strcmp(text, "up here"), "read of %d: expected the bytes, saw %s",
          fds[2], text);
    CHECK(MUST(open("/dev/null", O_RDONLY)) == 3, "a new descriptor: expected 3");
    struct rlimit now;
    MUST(getrlimit(RLIMIT_NOFILE, &now));
    CHECK(now.rlim_cur == limit.rlim_cur, "RLIMIT_NOFILE: expected %lu, saw %lu", limit.rlim_cur, now.rlim_cur);
    pass();
}
