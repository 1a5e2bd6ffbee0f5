// Files that a parent and its children have from one another: pipes and pairs with bytes in them,
// streams, counters, and a file with one position.
#include "tree.h"
#include <sys/eventfd.h>

static int down[2], across[2], result[2], position, counter;

static void takes(int fd, const char *expected) {
    char got[64] = {0};
    size_t bytes = 0;
    for (ssize_t more; bytes < strlen(expected); bytes += more) {
        more = read(fd, got + bytes, strlen(expected) - bytes);
        CHECK(more > 0, "expected '%s', saw '%s' and then %zd (%s)", expected, got, more, strerror(errno));
    }
    CHECK(!memcmp(got, expected, bytes), "expected '%s', saw '%s'", expected, got);
}

static void says(int fd, const char *text) {
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write: %s", strerror(errno));
}

static void ends(int fd) {
    char byte;
    ssize_t got = read(fd, &byte, 1);
    CHECK(got == 0, "expected the end, saw %zd (%s)", got, strerror(errno));
}

// A stage of a pipeline: from its stdin to its stdout.
static void filter(void) {
    MUST(dup2(down[0], 0));
    MUST(dup2(across[0], 7));
    for (int *fd = (int[]){down[0], down[1], across[0], across[1], result[0], result[1], -1}; *fd >= 0; fd++)
        if (*fd != 7) close(*fd);
    in_place();
    takes(0, "before after");
    takes(7, "sibling");
    takes(position, "ef");
    says(7, "answer");
    ends(0);
}

static void sibling(void) {
    close(down[0]), close(down[1]), close(across[0]), close(result[0]);
    MUST(fcntl(across[1], F_SETFL, O_NONBLOCK));
    says(across[1], "sibl");
    eventfd_t count;
    char byte;
    in_place();
    MUST(eventfd_read(counter, &count));
    CHECK(count == 5, "counter: expected 5, saw %lu", (unsigned long)count);
    REFUSED(read(across[1], &byte, 1), EAGAIN);
    takes(position, "cd");
    says(across[1], "ing");
    MUST(fcntl(across[1], F_SETFL, 0));
    takes(across[1], "answer");
    says(result[1], "done");
}

int main(void) {
    MUST(pipe(down));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, across));
    MUST(pipe(result));
    char path[] = "tree_files.XXXXXX";
    position = MUST(mkstemp(path));
    MUST(unlink(path));
    says(position, "abcdefgh");
    MUST(lseek(position, 1, SEEK_SET));
    counter = MUST(eventfd(2, 0));
    struct child one = child(filter), other = child(sibling);
    close(down[0]), close(across[0]), close(across[1]), close(result[1]);
    says(down[1], "before");
    takes(position, "b");
    ready_and_wait();
    CHECK(is_one_file(getpid(), position, one.pid, position), "expected one file in parent and child");
    CHECK(is_one_file(getpid(), 1, one.pid, 1), "expected one stdout of parent and child");
    CHECK(is_one_file(one.pid, 2, other.pid, 2), "expected one stderr of siblings");
    CHECK(!is_one_file(getpid(), counter, other.pid, position), "expected two files");
    MUST(eventfd_write(counter, 3));
    says(down[1], " after");
    tell(one);
    tell(other);
    takes(result[0], "done");
    ends(result[0]);
    close(down[1]);
    reap(one.pid);
    reap(other.pid);
    CHECK(MUST(lseek(position, 0, SEEK_CUR)) == 6, "expected all to share one position");
    pass();
}
