// Named pipes with both ends in this process: what is in them, and that every clone has its own.
#include "check.h"
#include <poll.h>
#include <sys/stat.h>

static void take(int fd, const char *expected) {
    char got[64] = {0};
    ssize_t bytes = read(fd, got, sizeof got - 1);
    CHECK(bytes == (ssize_t)strlen(expected) && !strcmp(got, expected), "expected '%s', saw %zd '%s'", expected,
          bytes, got);
}

static void both_ends(const char *name, int *ends) {
    unlink(name);
    MUST(mkfifo(name, 0600));
    ends[0] = MUST(open(name, O_RDONLY | O_NONBLOCK));
    ends[1] = MUST(open(name, O_WRONLY));
}

int main(void) {
    int named[2], gone[2], ended[2];
    both_ends("named", named);
    both_ends("gone", gone);
    both_ends("ended", ended);
    MUST(unlink("gone"));
    MUST(unlink("ended"));
    MUST(fcntl(gone[1], F_SETPIPE_SZ, 1 << 18));
    CHECK(write(named[1], "one ", 4) == 4 && write(named[1], "two", 3) == 3, "write: %s", strerror(errno));
    CHECK(write(gone[1], "without a name", 14) == 14, "write: %s", strerror(errno));
    CHECK(write(ended[1], "last", 4) == 4, "write: %s", strerror(errno));
    close(ended[1]);
    int place = MUST(open("named", O_PATH));
    ready_and_wait();
    take(named[0], "one two");
    take(gone[0], "without a name");
    take(ended[0], "last");
    take(ended[0], "");
    REFUSED(read(named[0], (char[1]){0}, 1), EAGAIN);
    CHECK(fcntl(gone[0], F_GETPIPE_SZ) == 1 << 18, "capacity: saw %d", fcntl(gone[0], F_GETPIPE_SZ));
    CHECK(write(named[1], "more", 4) == 4, "write: %s", strerror(errno));
    take(named[0], "more");
    struct pollfd writer = {.fd = gone[1], .events = POLLOUT};
    CHECK(poll(&writer, 1, 0) == 1 && writer.revents == POLLOUT, "poll: saw %#x", writer.revents);
    close(gone[0]);
    // What compares the process with others may have had the other end for a moment.
    writer.events = 0;
    CHECK(poll(&writer, 1, 10000) == 1 && writer.revents & POLLERR, "poll: expected an error, saw %#x", writer.revents);
    struct stat status;
    MUST(fstat(place, &status));
    CHECK(S_ISFIFO(status.st_mode), "O_PATH: expected a named pipe, saw mode %o", status.st_mode);
    pass();
}
