// Writes to pages at the very moment in which somebody makes them local: stores with numbers that go up
// by one, and atomic additions by several threads to one word. Whoever writes checks what it wrote. The
// program forks, protects and advises the kernel about the same memory meanwhile, and discards memory
// beside it.
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#define STORERS 2
#define ADDERS 2
#define WRITERS (STORERS + ADDERS)
#define PAGES 16384
#define WINDOW 512
#define WINDOWS (PAGES / WINDOW)
// Writes at random come to the first windows only: the others are as they were when their turn comes.
#define AT_RANDOM (PAGES / 4)
#define WORDS (PAGE / sizeof(uint64_t))
// In each page: storers have a word each; adders share one; one is for children.
#define SHARED 64
#define OF_CHILDREN 128
// Of each window nobody writes to this page but who makes it local, which so can be seen.
#define UNWRITTEN 8
#define LAPS 30
#define PART (16 * PAGE)
#define PARTS 512

static uint64_t *memory;
static uint8_t *beside;
static int page_table;
static volatile int ends, is_promoted;
static uint32_t written[WRITERS][PAGES];
static uint64_t seen[ADDERS][PAGES];

static uint64_t *word(size_t page, size_t index) {
    return memory + page * WORDS + index;
}

// A page of its own, as `pagemap` tells it: present, and no file's.
static int is_local(size_t page) {
    uint64_t entry = 0;
    off_t at = (off_t)((uintptr_t)word(page, 0) / PAGE * sizeof entry);
    CHECK(pread(page_table, &entry, sizeof entry, at) == sizeof entry, "pagemap: %s", strerror(errno));
    return entry >> 63 && !(entry >> 61 & 1);
}

static void store(size_t own, size_t page) {
    volatile uint64_t *at = word(page, own);
    CHECK(*at == written[own][page], "page %zu, word %zu: expected %u, saw %lu", page, own,
          written[own][page], *at);
    *at = ++written[own][page];
}

// No other adder takes away from what this one saw and added.
static void add(size_t own, size_t page) {
    uint64_t *at = word(page, SHARED), before, *last = &seen[own - STORERS][page];
    if (own % 2) {
        before = __atomic_fetch_add(at, 1, __ATOMIC_RELAXED);
    } else {
        before = __atomic_load_n(at, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(at, &before, before + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            ;
    }
    CHECK(before >= *last, "page %zu: expected a sum of %lu or more, saw %lu", page, *last, before);
    *last = before + 1;
    written[own][page]++;
}

static void write_to(size_t own, size_t page) {
    if (page % WINDOW == UNWRITTEN) return;
    if (own < STORERS)
        store(own, page);
    else
        add(own, page);
}

// Writes to what is left of a window as soon as its beginning is local, again and again: before it becomes
// local, while it does, and after that.
static size_t follows(size_t own, size_t window) {
    while (window < WINDOWS && !ends && is_local(window * WINDOW + UNWRITTEN)) {
        size_t next = window + 1;
        // Who has come too late for this window is in time for a later one.
        if (next == WINDOWS || !is_local(next * WINDOW + UNWRITTEN))
            for (unsigned lap = 0; lap < LAPS && !ends; lap++)
                for (size_t page = 0; page < WINDOW; page++)
                    // Not all begin at the same place.
                    write_to(own, window * WINDOW + (page + own * 100) % WINDOW);
        window = next;
    }
    return window;
}

static void *writer(void *argument) {
    size_t own = (size_t)argument, window = AT_RANDOM / WINDOW;
    uint64_t random = own + 1;
    while (!ends) {
        if (is_promoted) window = follows(own, window);
        random = random * 6364136223846793005u + 1442695040888963407u;
        write_to(own, (random >> 33) % (is_promoted ? AT_RANDOM : PAGES));
        // So that the first writes to pages take as long as somebody takes to make them local.
        for (int i = 0; is_promoted && i < 300; i++) __builtin_ia32_pause();
    }
    return NULL;
}

// What a child writes is its own, and it has all that was written before.
static void forks(unsigned step) {
    size_t first = step * 97 % (PAGES - 64);
    uint32_t before[64];
    for (size_t i = 0; i < 64; i++) before[i] = __atomic_load_n(&written[0][first + i], __ATOMIC_RELAXED);
    pid_t child = MUST(fork());
    if (!child) {
        for (size_t i = 0; i < 64; i++) {
            CHECK(*word(first + i, 0) + 1 >= before[i], "page %zu, in a child: expected %u, saw %lu",
                  first + i, before[i], *word(first + i, 0));
            *word(first + i, OF_CHILDREN) = step;
        }
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    CHECK(status == 0, "a child: expected to pass, saw status %#x", status);
    for (size_t i = 0; i < 64; i++)
        CHECK(!*word(first + i, OF_CHILDREN), "page %zu: a child's write came to its parent", first + i);
}

// Cuts mappings into pieces and joins them again under those who write.
static void protects(unsigned step) {
    size_t pages = 1 + step % 40;
    void *at = word(step * 61 % (PAGES - pages), 0);
    MUST(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
    MUST(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE));
}

static void advises(unsigned step) {
    size_t pages = 1 + step % 40;
    void *at = word(step * 83 % (PAGES - pages), 0);
    MUST(madvise(at, pages * PAGE, MADV_WILLNEED));
    MUST(madvise(at, pages * PAGE, MADV_DONTDUMP));
    MUST(madvise(at, pages * PAGE, MADV_COLD));
    MUST(madvise(at, pages * PAGE, MADV_DODUMP));
}

// Memory beside it, which is the image's the first time.
static void discards(unsigned step) {
    size_t from = (size_t)(step / 4 % PARTS) * PART;
    uint8_t *at = beside + from;
    CHECK_FILLED_FROM(at, PART, 5, from);
    uint8_t *own = at + step % PART, turned = *own ^ 0xff;
    *own = turned;
    MUST(mprotect(at, PART, PROT_READ));
    CHECK(*own == turned, "beside: expected %#x, saw %#x", turned, *own);
    MUST(mprotect(at, PART, PROT_READ | PROT_WRITE));
    MUST(madvise(at, PART, MADV_DONTNEED));
    CHECK_ZEROS(at, PART);
    for (size_t i = 0; i < PART; i++) at[i] = pattern(from + i, 5);
}

static void step_on(unsigned step) {
    void (*const all[])(unsigned) = {forks, protects, advises, discards};
    all[step % 4](step);
}

// Nobody writes any more.
static void check_all(void) {
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t sum = 0;
        for (size_t own = STORERS; own < WRITERS; own++) sum += written[own][page];
        CHECK(*word(page, SHARED) == sum, "page %zu: expected a sum of %lu, saw %lu", page, sum,
              *word(page, SHARED));
        for (size_t own = 0; own < STORERS; own++)
            CHECK(*word(page, own) == written[own][page], "page %zu, word %zu: expected %u, saw %lu", page,
                  own, written[own][page], *word(page, own));
        CHECK(*word(page, WORDS - 1) == page + 1, "page %zu: what nobody writes is another", page);
    }
    CHECK_FILLED(beside, PARTS * PART, 5);
}

int main(void) {
    memory = (uint64_t *)anonymous(PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++) *word(page, WORDS - 1) = page + 1;
    beside = filled(PARTS * PART, 5);
    char byte = ready_and_wait();
    page_table = MUST(open("/proc/self/pagemap", O_RDONLY));
    is_promoted = byte == 'v';
    // Read first, so that pages of the image are there to be made local; else they are not, and whoever
    // supplies them ahead has something to do.
    if (is_promoted) check_all();
    pthread_t threads[WRITERS];
    for (size_t own = 0; own < WRITERS; own++)
        CHECK(!pthread_create(&threads[own], NULL, writer, (void *)own), "no thread");
    if (is_promoted && write(1, "WORKS\n", 6) != 6) _exit(3);
    for (unsigned step = 0; step < 40 || byte == 'v'; step++) {
        step_on(step);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (byte == 'v' && poll(&input, 1, 0) == 1) MUST(read(0, &byte, 1));
    }
    ends = 1;
    for (size_t own = 0; own < WRITERS; own++) pthread_join(threads[own], NULL);
    check_all();
    pass();
}
