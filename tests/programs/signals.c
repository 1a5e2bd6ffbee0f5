// Signal actions, masks, alternate stacks, and pending signals with their values.
#include "check.h"
#include <pthread.h>
#include <signal.h>

static volatile int caught[128], values[8], value_count, on_alternate;
static uint8_t *alternate;
static pthread_barrier_t gate;

static void handler(int number, siginfo_t *info, void *context) {
    (void)context;
    caught[number]++;
    if (number >= SIGRTMIN && value_count < 8) values[value_count++] = info->si_value.sival_int;
    uint8_t here;
    if (&here > alternate && &here < alternate + 64 * PAGE) on_alternate++;
}

static void other(int number) { caught[number] += 100; }

static void set_action(int number, int flags, int blocked) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, blocked);
    MUST(sigaction(number, &action, NULL));
}

static void check_action(int number, int flags, int blocked) {
    struct sigaction action;
    MUST(sigaction(number, NULL, &action));
    int seen = action.sa_flags & ~0x04000000; // SA_RESTORER
    CHECK(action.sa_sigaction == handler, "action of %d: expected the handler", number);
    CHECK(seen == (SA_SIGINFO | flags), "flags of %d: expected %#x, saw %#x", number,
          SA_SIGINFO | flags, seen);
    CHECK(sigismember(&action.sa_mask, blocked) == 1, "mask of %d: expected %d in it", number,
          blocked);
}

static void queue(int number, int value) {
    siginfo_t info = {.si_signo = number, .si_code = SI_QUEUE};
    info.si_pid = getpid();
    info.si_value.sival_int = value;
    MUST(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), number, &info));
}

static void block(int how, int a, int b) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, a);
    sigaddset(&set, b);
    pthread_sigmask(how, &set, NULL);
}

static void check_mask(int number, int expected) {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, number) == expected, "mask of thread %d, signal %d: expected %d", gettid(),
          number, expected);
}

static void *masked_thread(void *argument) {
    (void)argument;
    block(SIG_BLOCK, SIGUSR2, SIGHUP);
    pthread_kill(pthread_self(), SIGHUP);
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    check_mask(SIGUSR2, 1);
    check_mask(SIGTERM, 1);
    check_mask(SIGINT, 0);
    sigset_t pending;
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGHUP) == 1, "pending on the thread: expected SIGHUP");
    CHECK(caught[SIGHUP] == 0, "SIGHUP: expected not delivered yet");
    block(SIG_UNBLOCK, SIGUSR2, SIGHUP);
    CHECK(caught[SIGHUP] == 1, "SIGHUP: expected once, saw %d", caught[SIGHUP]);
    return NULL;
}

static void check_pending(void) {
    check_mask(SIGRTMIN + 1, 1);
    check_mask(SIGTERM, 1);
    check_mask(SIGUSR1, 0);
    CHECK(caught[SIGTERM] == 0, "SIGTERM: expected not delivered yet");
    CHECK(value_count == 0, "queued: expected none delivered yet, saw %d", value_count);
    block(SIG_UNBLOCK, SIGRTMIN + 1, SIGTERM);
    CHECK(value_count == 3, "queued: expected 3, saw %d", value_count);
    for (int i = 0; i < 3; i++)
        CHECK(values[i] == 41 + i, "value %d: expected %d, saw %d", i, 41 + i, values[i]);
    CHECK(caught[SIGTERM] == 1, "SIGTERM: expected once, saw %d", caught[SIGTERM]);
}

static void check_alternate(void) {
    stack_t stack;
    MUST(sigaltstack(NULL, &stack));
    CHECK(stack.ss_sp == alternate && stack.ss_size == 64 * PAGE, "sigaltstack: expected %p, saw %p",
          alternate, stack.ss_sp);
    on_alternate = 0;
    MUST(raise(SIGUSR1));
    CHECK(on_alternate == 1, "SIGUSR1: expected on the alternate stack");
}

int main(void) {
    alternate = anonymous(64 * PAGE);
    MUST(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = 64 * PAGE}, NULL));
    set_action(SIGUSR1, SA_ONSTACK | SA_RESTART, SIGUSR2);
    set_action(SIGTERM, SA_NODEFER, SIGALRM);
    set_action(SIGHUP, 0, SIGINT);
    set_action(SIGRTMIN + 1, SA_RESTART, SIGCHLD);
    signal(SIGWINCH, SIG_IGN);
    struct sigaction once = {.sa_handler = other, .sa_flags = SA_RESETHAND};
    MUST(sigaction(SIGURG, &once, NULL));
    block(SIG_BLOCK, SIGRTMIN + 1, SIGTERM); // inherited by the thread
    pthread_barrier_init(&gate, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, masked_thread, NULL);
    pthread_barrier_wait(&gate);
    for (int i = 0; i < 3; i++) queue(SIGRTMIN + 1, 41 + i);
    MUST(kill(getpid(), SIGTERM)); // for the whole process: pending on it, not on a thread
    ready_and_wait();
    check_action(SIGUSR1, SA_ONSTACK | SA_RESTART, SIGUSR2);
    check_action(SIGTERM, SA_NODEFER, SIGALRM);
    check_action(SIGRTMIN + 1, SA_RESTART, SIGCHLD);
    MUST(raise(SIGURG));
    struct sigaction now;
    MUST(sigaction(SIGURG, NULL, &now));
    CHECK(caught[SIGURG] == 100 && now.sa_handler == SIG_DFL, "SIGURG: expected to be reset");
    MUST(sigaction(SIGWINCH, NULL, &now));
    CHECK(now.sa_handler == SIG_IGN, "SIGWINCH: expected to be ignored");
    check_pending();
    check_alternate();
    pthread_barrier_wait(&gate);
    pthread_join(thread, NULL);
    pass();
}
