// Discarding memory where the kernel would not map any more: no descriptor, address space or mapping
// is left, or the file has another one in its place. The call needs none of that.
#include "file_map.h"
#include <sys/resource.h>

#define BYTES (64 * PAGE)

static uint8_t *memory, *file, *replaced;

static struct rlimit limited(int resource, rlim_t to) {
    struct rlimit before;
    MUST(getrlimit(resource, &before));
    MUST(setrlimit(resource, &(struct rlimit){to, before.rlim_max}));
    return before;
}

// Of both memories two pages, from `page` on.
static void discard_two(size_t page) {
    size_t at = page * PAGE;
    DONTNEED(memory + at, 2 * PAGE);
    CHECK_ZEROS(memory + at, 2 * PAGE);
    CHECK_FILLED_FROM(memory + at + 2 * PAGE, 2 * PAGE, 1, at + 2 * PAGE);
    DONTNEED(file + at, 2 * PAGE);
    CHECK_FILLED_FROM(file + at, 2 * PAGE, 2, at);
    CHECK_FILLED_FROM(file + at + 2 * PAGE, 2 * PAGE, 3, at + 2 * PAGE);
}

static void without_descriptors(void) {
    struct rlimit before = limited(RLIMIT_NOFILE, 0);
    discard_two(4);
    MUST(setrlimit(RLIMIT_NOFILE, &before));
}

static void without_address_space(void) {
    struct rlimit before = limited(RLIMIT_AS, 0);
    discard_two(10);
    MUST(setrlimit(RLIMIT_AS, &before));
}

// Neighbouring pages of different protection are mappings of their own.
static void without_mappings(void) {
    size_t pages = 200000, made = 0;
    uint8_t *many = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
    CHECK(many != MAP_FAILED, "mmap: %s", strerror(errno));
    while (made < pages && !mprotect(many + made * PAGE, PAGE, PROT_READ)) made += 2;
    if (made >= pages) note("vm.max_map_count is not reached by %zu mappings", made);
    discard_two(16);
    discard_two(22);
    MUST(munmap(many, pages * PAGE));
}

static void with_another_file_there(void) {
    usleep(200000);
    close(file_with("new", BYTES, 5));
    MUST(rename("new", "replaced"));
    DONTNEED(replaced + PAGE, 4 * PAGE);
    CHECK_FILLED_FROM(replaced, 5 * PAGE, 4, 0);
}

int main(void) {
    int fd = file_with("mapped", BYTES, 2);
    file = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    close(fd);
    fill(file, BYTES, 3);
    fd = file_with("replaced", BYTES, 4);
    replaced = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    close(fd);
    fill(replaced + PAGE, PAGE, 6);
    memory = filled(BYTES, 1);
    ready_and_wait();
    without_descriptors();
    without_address_space();
    without_mappings();
    with_another_file_there();
    DONTNEED(file, BYTES);
    CHECK_FILLED(file, BYTES, 2);
    DONTNEED(memory, BYTES);
    CHECK_ZEROS(memory, BYTES);
    pass();
}
