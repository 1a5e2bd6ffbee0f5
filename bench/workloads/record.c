/* Records the pages that a process touches, in order, from one moment on. record.py loads it.
 *
 *  parent   has its memory copied by fork, then emptied and registered with a userfaultfd
 *  child    has the copy at the same addresses; answers each fault with its own page, and notes it
 *
 * Private mappings of files become memory without a file, so that their pages count, too. Not recorded: shared
 * mappings, mappings that are made later, this library, and the part of the stack that is in use. Between the fork
 * and the last registration the parent calls no other code: that of libc may be missing already. */

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define MOST_AREAS 8192
#define MOST_PAGES (4ul << 20)
#define MOST_TOUCHED (1ul << 20)
#define STACK_BELOW (64ul << 10)
#define STACK_ABOVE (16ul << 10)

struct area {
    uint64_t start, end, protection, is_file;
};

/* In shared memory, which is not registered. */
struct recording {
    volatile uint64_t is_over;
    volatile uint64_t touched;
    uint64_t areas;
    uint64_t failed;
    struct area area[MOST_AREAS];
    /* Page address, and in bit 0 whether the first access wrote. */
    uint64_t page[MOST_TOUCHED];
    /* Of each page of each area: 0 absent, 1 present, 2 present and zeros. */
    uint8_t state[MOST_PAGES];
};

static struct recording *recording;
static char maps[4 << 20];

static inline long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static uint64_t hexadecimal(char **at) {
    return strtoull(*at, at, 16);
}

static void add(uint64_t start, uint64_t end, uint64_t protection, uint64_t is_file) {
    if (start < end && recording->areas < MOST_AREAS)
        recording->area[recording->areas++] = (struct area){start, end, protection, is_file};
}

/* Lists the private mappings of /proc/self/maps. `stack` lies in the frame that stays. */
static int list_areas(uint64_t stack) {
    int file = open("/proc/self/maps", O_RDONLY);
    size_t bytes = 0;
    for (ssize_t got; (got = read(file, maps + bytes, sizeof maps - 1 - bytes)) > 0;)
        bytes += got;
    close(file);
    maps[bytes] = 0;
    uint64_t low = (stack - STACK_BELOW) & -PAGE, high = (stack + STACK_ABOVE) & -PAGE;
    uint64_t own[] = {(uint64_t)&list_areas, (uint64_t)&recording, (uint64_t)maps};
    for (char *line = maps; *line; line = strchr(line, '\n') + 1) {
        char *at = line, *end = strchr(line, '\n');
        uint64_t from = hexadecimal(&at);
        at++;
        uint64_t to = hexadecimal(&at);
        uint64_t protection = (at[1] == 'r') | (at[2] == 'w') << 1 | (at[3] == 'x') << 2;
        int is_shared = at[4] == 's', is_own = 0;
        *end = 0;
        char *name = strpbrk(at, "/[");
        for (int i = 0; i < 3; i++)
            is_own |= from <= own[i] && own[i] < to;
        is_own |= name && strstr(name, "record.so");
        is_own |= name && (!strncmp(name, "[v", 2));
        *end = '\n';
        if (is_own || is_shared || !protection)
            continue;
        uint64_t is_file = name && *name == '/';
        if (from <= stack && stack < to) {
            add(from, low < to ? low : to, protection, is_file);
            add(high, to, protection, is_file);
        } else {
            add(from, to, protection, is_file);
        }
    }
    return 0;
}

static int is_zeros(const uint64_t *page) {
    for (unsigned i = 0; i < PAGE / 8; i++)
        if (page[i])
            return 0;
    return 1;
}

static void note_states(void) {
    int file = open("/proc/self/pagemap", O_RDONLY);
    uint64_t number = 0;
    for (uint64_t i = 0; i < recording->areas; i++) {
        struct area *area = &recording->area[i];
        for (uint64_t page = area->start; page < area->end && number < MOST_PAGES; page += PAGE, number++) {
            uint64_t entry = 0;
            if (pread(file, &entry, 8, page / PAGE * 8) != 8 || !(entry >> 62) || !(area->protection & 1))
                continue;
            recording->state[number] = is_zeros((const uint64_t *)page) ? 2 : 1;
        }
    }
    close(file);
}

/* The child: never returns. */
static void serve(int userfault) {
    call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
    for (;;) {
        struct uffd_msg message;
        if (call(SYS_read, userfault, (long)&message, sizeof message, 0, 0, 0) != sizeof message)
            continue;
        if (message.event != UFFD_EVENT_PAGEFAULT)
            continue;
        uint64_t page = message.arg.pagefault.address & -PAGE;
        uint64_t is_write = message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WRITE;
        if (!recording->is_over && recording->touched < MOST_TOUCHED)
            recording->page[recording->touched++] = page | is_write;
        struct uffdio_copy copy = {.dst = page, .src = page, .len = PAGE};
        if (call(SYS_ioctl, userfault, UFFDIO_COPY, (long)&copy, 0, 0, 0) == -14) {
            struct uffdio_zeropage zero = {.range = {page, PAGE}};
            call(SYS_ioctl, userfault, UFFDIO_ZEROPAGE, (long)&zero, 0, 0, 0);
        }
    }
}

/* Begins a recording; 0, or the number of what failed. */
int record_begin(void) {
    uint64_t stack = (uint64_t)__builtin_frame_address(0);
    recording = mmap(0, sizeof *recording, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int userfault = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (recording == MAP_FAILED || userfault < 0 || syscall(SYS_ioctl, userfault, UFFDIO_API, &api))
        return 1;
    list_areas(stack);
    note_states();
    long child = call(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
    if (child < 0)
        return 2;
    if (!child)
        serve(userfault);
    for (uint64_t i = 0; i < recording->areas; i++) {
        struct area *area = &recording->area[i];
        uint64_t bytes = area->end - area->start;
        if (area->is_file) {
            long flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
            call(SYS_mmap, area->start, bytes, area->protection, flags, -1, 0);
        }
        struct uffdio_register registered = {.range = {area->start, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (call(SYS_ioctl, userfault, UFFDIO_REGISTER, (long)&registered, 0, 0, 0)) {
            /* A file's content is gone already. */
            if (area->is_file)
                call(SYS_exit_group, 90, 0, 0, 0, 0, 0);
            recording->failed++;
            continue;
        }
        if (!area->is_file)
            call(SYS_madvise, area->start, bytes, MADV_DONTNEED, 0, 0, 0);
    }
    return 0;
}

/* Ends it: what is touched from now on is not noted. The recording stays where it is. */
struct recording *record_end(void) {
    recording->is_over = 1;
    return recording;
}
