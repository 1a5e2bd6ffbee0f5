// Touches certain pages of certain memory, and says where it is. With an argument it forks a child
// that has memory of its own.
#include "check.h"

enum { PAGES = 2048 };

struct part {
    const char *name;
    uint8_t *at;
    size_t read_every, write_every;
};

static void touch(const struct part *part) {
    for (size_t page = 0; page < PAGES; page++) {
        volatile uint8_t *byte = part->at + page * PAGE + 7;
        if (part->write_every && page % part->write_every == 3) *byte = 1;
        if (part->read_every && page % part->read_every == 5) (void)*byte;
    }
}

static void tell(const char *who, const struct part *part) {
    note("%s %s %lx", who, part->name, (unsigned long)part->at);
}

static void await_byte(void) {
    char byte = 0;
    CHECK(read(0, &byte, 1) == 1, "expected a byte, saw %s", strerror(errno));
}

int main(int count, char **arguments) {
    (void)arguments;
    struct part parts[] = {
        {"whole", anonymous(PAGES * PAGE), 17, 23},
        {"readonly", anonymous(PAGES * PAGE), 19, 0},
        {"sparse", anonymous(PAGES * PAGE), 64, 0},
        {"file", NULL, 31, 37},
        {"guarded", anonymous(PAGES * PAGE), 41, 43},
    };
    int pipes[2] = {-1, -1}, made[2] = {-1, -1};
    pid_t child = 0;
    const char *who = "parent";
    if (count > 1) {
        MUST(pipe(pipes));
        MUST(pipe(made));
        child = MUST(fork());
        who = child ? "parent" : "child";
        MUST(close(pipes[child ? 0 : 1]));
    }
    int file = MUST(open(child || count == 1 ? "touched" : "touched-too", O_CREAT | O_TRUNC | O_RDWR, 0600));
    for (size_t page = 0; page < PAGES; page++) MUST(write(file, (char[PAGE]){1}, PAGE));
    parts[3].at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(parts[3].at != MAP_FAILED, "mmap: %s", strerror(errno));
    MUST(close(file));
    for (size_t index = 0; index < sizeof parts / sizeof *parts; index++) {
        int is_sparse = index == 2;
        if (is_sparse) MUST(madvise(parts[index].at, PAGES * PAGE, MADV_NOHUGEPAGE));
        if (is_sparse) // single pages far apart, in windows that hold little else
            for (size_t page = 5; page < PAGES; page += 64) parts[index].at[page * PAGE] = 1;
        else
            fill(parts[index].at, PAGES * PAGE, (unsigned)index);
        tell(who, &parts[index]);
    }
    MUST(mprotect(parts[1].at, PAGES * PAGE, PROT_READ));
    MUST(madvise(parts[4].at + 100 * PAGE, PAGE, 102)); // MADV_GUARD_INSTALL
    if (child == 0 && count > 1) {
        char byte;
        MUST(write(made[1], "", 1));
        MUST(read(pipes[0], &byte, 1));
    } else {
        char byte;
        if (child) MUST(read(made[0], &byte, 1));
        ready_and_wait();
    }
    for (size_t index = 0; index < sizeof parts / sizeof *parts; index++) touch(&parts[index]);
    note("%s TOUCHED", who);
    if (child) MUST(write(pipes[1], "", 1)); // it comes after this process
    if (child == 0 && count > 1) {
        char byte;
        _exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1); // when the parent has gone
    }
    await_byte();
    pass();
}
