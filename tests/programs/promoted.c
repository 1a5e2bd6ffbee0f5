// Writes to its memory all the time from several threads, and checks it, while it takes parts of it
// away, moves and protects them, and forks: whoever makes its pages local meanwhile changes no byte.
#include "check.h"
#include <poll.h>
#include <pthread.h>

#define WRITERS 3
#define PAGES 16384
#define WORDS (PAGE / sizeof(uint64_t))
#define CHURNED (4 * HUGE)

static uint64_t *memory;
static uint8_t *churned;
static volatile int ends, is_paced;

// Each writer has a word of every page for itself.
static void *writer(void *argument) {
    size_t own = (size_t)argument;
    static __thread uint64_t last[PAGES];
    uint64_t random = own + 1;
    for (size_t page = 0; page < PAGES; page++) last[page] = page + 1;
    while (!ends) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t page = (random >> 33) % PAGES;
        volatile uint64_t *word = memory + page * WORDS + own;
        CHECK(*word == last[page], "page %zu, word %zu: expected %#lx, saw %#lx", page, own,
              last[page], *word);
        *word = last[page] = random;
        // So that the first writes to pages take as long as somebody takes to make them local.
        for (int i = 0; is_paced && i < 300; i++) __builtin_ia32_pause();
    }
    for (size_t page = 0; page < PAGES; page++)
        CHECK(memory[page * WORDS + own] == last[page], "page %zu: a write was lost", page);
    return NULL;
}

static void refills(uint8_t *at, size_t bytes, size_t from) {
    for (size_t i = 0; i < bytes; i++) at[i] = pattern(from + i, 5);
}

// One of the things that a program may do to its mappings; all is as before after it.
static void churn(unsigned step) {
    size_t from = (size_t)(step * 37 % 500) * PAGE, bytes = 12 * PAGE;
    uint8_t *at = churned + from;
    switch (step % 5) {
    case 0:
        MUST(mprotect(at, bytes, PROT_READ));
        CHECK_FILLED_FROM(at, bytes, 5, from);
        MUST(mprotect(at, bytes, PROT_READ | PROT_WRITE));
        break;
    case 1:
        MUST(munmap(at, bytes));
        CHECK(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at,
              "mmap: %s", strerror(errno));
        CHECK_ZEROS(at, bytes);
        refills(at, bytes, from);
        break;
    case 2: {
        uint8_t *aside = anonymous(bytes);
        CHECK(mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, aside) == aside, "mremap: %s",
              strerror(errno));
        CHECK_FILLED_FROM(aside, bytes, 5, from);
        CHECK(mremap(aside, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at, "mremap: %s",
              strerror(errno));
        break;
    }
    case 3:
        MUST(madvise(at, bytes, MADV_DONTNEED));
        CHECK_ZEROS(at, bytes);
        refills(at, bytes, from);
        break;
    default: {
        pid_t child = MUST(fork());
        if (!child) {
            CHECK_FILLED(churned, CHURNED, 5);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0));
        CHECK(status == 0, "a child: expected to pass, saw status %#x", status);
    }
    }
}

int main(void) {
    memory = (uint64_t *)anonymous(PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++)
        for (size_t own = 0; own < WRITERS; own++) memory[page * WORDS + own] = page + 1;
    churned = filled(CHURNED, 5);
    char byte = ready_and_wait();
    // Read first, so that pages of the image are there to be made local.
    CHECK_FILLED(churned, CHURNED, 5);
    uint64_t seen = 0;
    for (size_t page = 0; page < PAGES; page++) seen += memory[page * WORDS];
    CHECK(seen == (uint64_t)PAGES * (PAGES + 1) / 2, "expected the numbers of pages, saw %lu", seen);
    is_paced = byte == 'v';
    pthread_t threads[WRITERS];
    for (size_t own = 0; own < WRITERS; own++)
        CHECK(!pthread_create(&threads[own], NULL, writer, (void *)own), "no thread");
    if (byte == 'v' && write(1, "WORKS\n", 6) != 6) _exit(3);
    for (unsigned step = 0; step < 40 || byte == 'v'; step++) {
        churn(step);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (byte == 'v' && poll(&input, 1, 0) == 1) MUST(read(0, &byte, 1));
    }
    ends = 1;
    for (size_t own = 0; own < WRITERS; own++) pthread_join(threads[own], NULL);
    CHECK_FILLED(churned, CHURNED, 5);
    pass();
}
