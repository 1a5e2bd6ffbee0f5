// Threads that spin, sleep and wait for ever, and count. On 'v' all of them have to have gone on
// since, in the state that they had: whatever a checkpointer did to them, and wherever it died.
#include "check.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define WAIT_MS 4
#define SPINS 5
enum { SPIN, NANOSLEEP, ABSOLUTE, FUTEX, POLL, PIPE, SIGNAL, PARTS };

static volatile unsigned long rounds[PARTS];
static int pipe_fds[2], silent[2], word;
static volatile int traps, wakes;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void check_mask(const char *who, int blocked) {
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    for (int number = 1; number < 65; number++) {
        if (number == 32 || number == 33) continue; // the C library's own
        CHECK(sigismember(&set, number) == (number == blocked || number == SIGURG),
              "%s: signal %d is %s", who, number, sigismember(&set, number) ? "blocked" : "open");
    }
}

struct registers {
    uint8_t vectors_in[256], vectors_out[256];
    uint64_t general[13];
} __attribute__((aligned(16)));

// Every register that a compiler uses keeps its value through a loop of some 100 us. A tenth of the time: a test has
// many such threads, and they would have all processors.
static void *spin(void *unused) {
    (void)unused;
    static struct registers state;
    fill(state.vectors_in, sizeof state.vectors_in, 5);
    for (;; rounds[SPIN]++) {
        if (rounds[SPIN] % SPINS == 0) usleep(4500);
        memset(state.vectors_out, 0, sizeof state.vectors_out);
        memset(state.general, 0, sizeof state.general);
        struct registers *at = &state;
        __asm__ volatile(
            "lea -128(%%rsp), %%rsp; push %%rbp; push %%rax\n" // below the red zone
            "movdqa 0(%%rax), %%xmm0; movdqa 16(%%rax), %%xmm1; movdqa 32(%%rax), %%xmm2\n"
            "movdqa 48(%%rax), %%xmm3; movdqa 64(%%rax), %%xmm4; movdqa 80(%%rax), %%xmm5\n"
            "movdqa 96(%%rax), %%xmm6; movdqa 112(%%rax), %%xmm7; movdqa 128(%%rax), %%xmm8\n"
            "movdqa 144(%%rax), %%xmm9; movdqa 160(%%rax), %%xmm10; movdqa 176(%%rax), %%xmm11\n"
            "movdqa 192(%%rax), %%xmm12; movdqa 208(%%rax), %%xmm13; movdqa 224(%%rax), %%xmm14\n"
            "movdqa 240(%%rax), %%xmm15\n"
            "mov $101, %%rax; mov $102, %%rbx; mov $103, %%rdx\n"
            "mov $104, %%rsi; mov $105, %%rdi; mov $106, %%rbp\n"
            "mov $107, %%r8; mov $108, %%r9; mov $109, %%r10\n"
            "mov $110, %%r11; mov $111, %%r12; mov $112, %%r13\n"
            "mov $113, %%r14\n"
            "mov $200000, %%rcx\n"
            "1: dec %%rcx; jnz 1b\n"
            "pop %%r15\n"
            "mov %%rax, 512(%%r15); mov %%rbx, 520(%%r15); mov %%rdx, 528(%%r15)\n"
            "mov %%rsi, 536(%%r15); mov %%rdi, 544(%%r15); mov %%rbp, 552(%%r15)\n"
            "mov %%r8, 560(%%r15); mov %%r9, 568(%%r15); mov %%r10, 576(%%r15)\n"
            "mov %%r11, 584(%%r15); mov %%r12, 592(%%r15); mov %%r13, 600(%%r15)\n"
            "mov %%r14, 608(%%r15)\n"
            "movdqu %%xmm0, 256(%%r15); movdqu %%xmm1, 272(%%r15); movdqu %%xmm2, 288(%%r15)\n"
            "movdqu %%xmm3, 304(%%r15); movdqu %%xmm4, 320(%%r15); movdqu %%xmm5, 336(%%r15)\n"
            "movdqu %%xmm6, 352(%%r15); movdqu %%xmm7, 368(%%r15); movdqu %%xmm8, 384(%%r15)\n"
            "movdqu %%xmm9, 400(%%r15); movdqu %%xmm10, 416(%%r15); movdqu %%xmm11, 432(%%r15)\n"
            "movdqu %%xmm12, 448(%%r15); movdqu %%xmm13, 464(%%r15); movdqu %%xmm14, 480(%%r15)\n"
            "movdqu %%xmm15, 496(%%r15)\n"
            "pop %%rbp; lea 128(%%rsp), %%rsp\n"
            : "+a"(at)
            :
            : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
              "r15", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
              "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
        for (unsigned i = 0; i < 13; i++)
            CHECK(state.general[i] == 101 + i, "register %u: expected %u, saw %#lx", i, 101 + i,
                  state.general[i]);
        CHECK_FILLED(state.vectors_out, sizeof state.vectors_out, 5);
    }
    return NULL;
}

static void lasted(const char *what, double since) {
    double ms = (now() - since) * 1000;
    CHECK(ms >= WAIT_MS - 0.1, "%s: expected at least %d ms, saw %.2f", what, WAIT_MS, ms);
}

static void *sleep_relative(void *unused) {
    (void)unused;
    for (;; rounds[NANOSLEEP]++) {
        double since = now();
        struct timespec time = {0, WAIT_MS * 1000000L}, left = {0};
        CHECK(syscall(SYS_nanosleep, &time, &left) == 0, "nanosleep: %s", strerror(errno));
        lasted("nanosleep", since);
    }
    return NULL;
}

static void *sleep_absolute(void *unused) {
    (void)unused;
    for (;; rounds[ABSOLUTE]++) {
        double since = now();
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WAIT_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        long error = syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        CHECK(error == 0, "clock_nanosleep: %s", strerror(errno));
        lasted("clock_nanosleep", since);
    }
    return NULL;
}

static void *wait_futex(void *unused) {
    (void)unused;
    for (;; rounds[FUTEX]++) {
        double since = now();
        struct timespec time = {0, WAIT_MS * 1000000L};
        long got = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
        CHECK(got == -1 && errno == ETIMEDOUT, "futex: expected ETIMEDOUT, saw %ld (%s)", got,
              strerror(errno));
        lasted("futex", since);
    }
    return NULL;
}

static void *wait_poll(void *unused) {
    (void)unused;
    for (;; rounds[POLL]++) {
        double since = now();
        struct pollfd set = {.fd = silent[0], .events = POLLIN};
        long got = syscall(SYS_poll, &set, 1, WAIT_MS);
        CHECK(got == 0, "poll: expected a timeout, saw %ld (%s)", got, strerror(errno));
        lasted("poll", since);
    }
    return NULL;
}

static void *read_pipe(void *unused) {
    (void)unused;
    for (unsigned long expected = 1;; expected++) {
        unsigned long number = 0;
        long got = syscall(SYS_read, pipe_fds[0], &number, sizeof number);
        CHECK(got == sizeof number && number == expected,
              "read: expected number %lu, saw %lu (%ld, %s)", expected, number, got,
              strerror(errno));
        rounds[PIPE]++;
    }
    return NULL;
}

static void woken(int number) {
    (void)number;
    wakes++;
}

static void trapped(int number) {
    (void)number;
    traps++;
}

// SIGUSR1 is open in here alone, and only while it waits.
static void *suspend(void *unused) {
    (void)unused;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    for (int expected = 1;; expected++) {
        sigset_t open;
        sigfillset(&open);
        sigdelset(&open, SIGUSR1);
        long got = syscall(SYS_rt_sigsuspend, &open, 8);
        CHECK(got == -1 && errno == EINTR && wakes == expected,
              "sigsuspend: expected EINTR and signal %d, saw %ld and %d", expected, got, wakes);
        check_mask("the thread in sigsuspend", SIGUSR1);
        rounds[SIGNAL]++;
    }
    return NULL;
}

static pthread_t threads[PARTS];

static void verify(void) {
    static unsigned long sent;
    unsigned long before[PARTS];
    for (int i = 0; i < PARTS; i++) before[i] = rounds[i];
    sent++;
    CHECK(write(pipe_fds[1], &sent, sizeof sent) == sizeof sent, "write: %s", strerror(errno));
    MUST(-pthread_kill(threads[SIGNAL], SIGUSR1));
    double since = now();
    for (int i = 0; i < PARTS; i++) {
        // Twice: the first may have ended before the command.
        unsigned long wanted = before[i] + (i == PIPE || i == SIGNAL ? 1 : 2);
        while (rounds[i] < wanted) {
            CHECK(now() - since < 10, "thread %d stands still", i);
            usleep(500);
        }
    }
    check_mask("the main thread", 0);
    int seen = traps;
    raise(SIGTRAP);
    CHECK(traps == seen + 1, "SIGTRAP: expected its handler to run, saw %d, then %d", seen, traps);
}

int main(void) {
    void *(*bodies[PARTS])(void *) = {spin,      sleep_relative, sleep_absolute, wait_futex,
                                      wait_poll, read_pipe,      suspend};
    sigset_t urgent;
    sigemptyset(&urgent);
    sigaddset(&urgent, SIGURG);
    pthread_sigmask(SIG_SETMASK, &urgent, NULL);
    signal(SIGUSR1, woken);
    signal(SIGTRAP, trapped);
    MUST(pipe(pipe_fds));
    MUST(pipe(silent));
    for (int i = 0; i < PARTS; i++) pthread_create(&threads[i], NULL, bodies[i], NULL);
    usleep(20000);
    char command = ready_and_wait();
    while (command == 'v') {
        verify();
        if (write(1, "OK\n", 3) != 3) _exit(3);
        ssize_t got = read(0, &command, 1);
        CHECK(got == 1, "read of one byte from fd 0: expected 1, saw %zd (%s)", got,
              strerror(errno));
    }
    verify();
    pass();
}
