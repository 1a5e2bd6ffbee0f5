// Logs that grow all the time, under the parent and every clone: each starts although the files
// are not what they were.
#include "check.h"
#include <pthread.h>

static int appended, both;
static volatile int over;

static void write_line(int fd) {
    CHECK(write(fd, "0123456789abcde\n", 16) == 16, "write: %s", strerror(errno));
}

static void *grow(void *none) {
    for (; !over; usleep(1000)) {
        write_line(appended);
        write_line(both);
    }
    return none;
}

int main(void) {
    appended = MUST(open("appended", O_WRONLY | O_APPEND | O_CREAT | O_TRUNC, 0644));
    both = MUST(open("both", O_RDWR | O_APPEND | O_CREAT | O_TRUNC, 0644));
    int output = MUST(open("output", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    CHECK(write(output, "abc", 3) == 3, "write: %s", strerror(errno));
    pthread_t thread;
    pthread_create(&thread, NULL, grow, NULL);
    usleep(20000);
    ready_and_wait();
    off_t before = lseek(both, 0, SEEK_END);
    // The other thread may have to wait for a disk, or for a processor.
    for (int ms = 0; lseek(both, 0, SEEK_END) <= before; ms++, usleep(1000))
        CHECK(ms < 10000, "expected the log to grow");
    over = 1;
    pthread_join(thread, NULL);
    char line[16];
    for (off_t at = 0; pread(both, line, 16, at) == 16; at += 16)
        CHECK(!memcmp(line, "0123456789abcde\n", 16), "line at %ld: expected it whole", at);
    CHECK(lseek(output, 0, SEEK_CUR) == 3, "output: expected to go on at 3");
    pass();
}
