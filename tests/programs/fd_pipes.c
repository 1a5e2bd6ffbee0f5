// Pipes inside the process: their data, sizes, flags, duplicates, closed ends.
#include "check.h"
#include <signal.h>

static void check_data(int from) {
    char text[64] = "";
    ssize_t got = read(from, text, sizeof text);
    CHECK(got == 11 && !strcmp(text, "hello pipes"), "pipe: expected the 11 bytes, saw %zd: %s", got, text);
}

int main(void) {
    int with_data[2], small[2], nonblocking[2], no_writer[2], no_reader[2];
    MUST(pipe(with_data));
    MUST(pipe(small));
    MUST(pipe2(nonblocking, O_NONBLOCK | O_CLOEXEC));
    MUST(pipe(no_writer));
    MUST(pipe(no_reader));
    CHECK(write(with_data[1], "hello pipes", 11) == 11, "write: %s", strerror(errno));
    int again = MUST(fcntl(with_data[1], F_DUPFD, 60));
    int reader = MUST(dup(with_data[0]));
    int size = MUST(fcntl(small[1], F_SETPIPE_SZ, PAGE));
    CHECK(write(no_writer[1], "rest", 4) == 4, "write: %s", strerror(errno));
    close(no_writer[1]);
    close(no_reader[0]);
    signal(SIGPIPE, SIG_IGN);
    ready_and_wait();
    check_data(reader);
    CHECK(write(again, "hello pipes", 11) == 11, "write to the duplicate: %s", strerror(errno));
    check_data(with_data[0]);
    int now = fcntl(small[0], F_GETPIPE_SZ);
    CHECK(now == size, "pipe size: expected %d, saw %d", size, now);
    char byte[8];
    REFUSED(read(nonblocking[0], byte, 1), EAGAIN);
    CHECK(fcntl(nonblocking[1], F_GETFD) == FD_CLOEXEC, "pipe: expected close-on-exec");
    CHECK(read(no_writer[0], byte, 8) == 4 && !memcmp(byte, "rest", 4), "pipe without writer: expected its rest");
    CHECK(read(no_writer[0], byte, 8) == 0, "pipe without writer: expected the end");
    REFUSED(write(no_reader[1], "x", 1), EPIPE);
    pass();
}
