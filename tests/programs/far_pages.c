// Memory with a pattern of its own on each page. Commands, one byte each:
//   t  touch the next page of a row far apart, and say which
//   f  pass a page that was not touched to a system call, and say what it returns
//   \n verify everything, in a child too, do new work, and pass
#include "check.h"

enum { PAGES = 8192, FAR_APART = 257 };

static uint64_t word(size_t page, size_t at) {
    return (page * 512 + at + 1) * 0x9e3779b97f4a7c15UL;
}

static void lay_out(uint64_t *memory) {
    for (size_t page = 0; page < PAGES; page++)
        for (size_t at = 0; at < 512; at++) memory[page * 512 + at] = word(page, at);
}

static void verify_words(const uint64_t *memory, size_t from, size_t step) {
    for (size_t page = from; page < PAGES; page += step)
        for (size_t at = 0; at < 512; at++)
            CHECK(memory[page * 512 + at] == word(page, at), "page %zu word %zu: saw %lx", page, at,
                  (unsigned long)memory[page * 512 + at]);
}

static void pass_to_kernel(const uint64_t *memory, size_t page) {
    int ends[2];
    CHECK(pipe(ends) == 0, "expected a pipe, saw %s", strerror(errno));
    ssize_t written = write(ends[1], memory + page * 512, 64);
    note("write %zd %d", written, written < 0 ? errno : 0);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0, "expected both ends closed");
}

int main(void) {
    uint64_t *memory = (uint64_t *)anonymous(PAGES * PAGE);
    lay_out(memory);
    CHECK(write(1, "READY\n", 6) == 6, "expected to write READY");
    char command = 0;
    for (size_t next = 1; read(0, &command, 1) == 1 && command != '\n';
         next = (next + FAR_APART) % PAGES) {
        if (command == 'f') pass_to_kernel(memory, next);
        if (command != 't') continue;
        CHECK(memory[next * 512 + 9] == word(next, 9), "page %zu is another", next);
        note("touched %zu", next);
    }
    CHECK(command == '\n', "expected a byte, saw %s", strerror(errno));
    pid_t child = fork();
    CHECK(child >= 0, "expected a child, saw %s", strerror(errno));
    if (child == 0) {
        verify_words(memory, 0, 2);
        _exit(0);
    }
    verify_words(memory, 1, 2);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "expected the child to end with 0, saw %x",
          status);
    // New work: what is written is local, what is not stays what it was.
    for (size_t page = 0; page < PAGES; page += 16) memory[page * 512] = page;
    for (size_t page = 0; page < PAGES; page += 16)
        CHECK(memory[page * 512] == page && memory[page * 512 + 1] == word(page, 1),
              "page %zu is another after a write", page);
    pass();
}
