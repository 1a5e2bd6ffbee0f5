// Interval timers and POSIX timers go on: armed, with their periods, ids and targets.
#include "check.h"
#include <signal.h>
#include <sys/time.h>
#include <time.h>

static volatile int fired[128], by_thread, timer_value;

static void handler(int number, siginfo_t *info, void *context) {
    (void)context;
    fired[number]++;
    if (number == SIGRTMIN) timer_value = info->si_value.sival_int;
    if (number == SIGRTMIN + 1) by_thread = gettid();
}

static void catch_signal(int number) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    MUST(sigaction(number, &action, NULL));
}

static timer_t make_timer(int notify, int number, int value) {
    struct sigevent event = {.sigev_notify = notify, .sigev_signo = number};
    event.sigev_value.sival_int = value;
    if (notify == SIGEV_THREAD_ID) event._sigev_un._tid = gettid();
    timer_t timer;
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec time = {{0, 20000000}, {0, 20000000}};
    MUST(timer_settime(timer, 0, &time, NULL));
    return timer;
}

static void check_timer(timer_t timer, const char *what) {
    struct itimerspec time;
    MUST(timer_gettime(timer, &time));
    CHECK(time.it_interval.tv_sec == 0 && time.it_interval.tv_nsec == 20000000,
          "%s: expected a period of 20 ms, saw %ld ns", what, time.it_interval.tv_nsec);
}

static void set_interval(int which, long us) {
    struct itimerval time = {{0, us}, {0, us}};
    MUST(setitimer(which, &time, NULL));
}

static void check_interval(int which, const char *what) {
    struct itimerval time;
    MUST(getitimer(which, &time));
    CHECK(time.it_interval.tv_sec == 0 && time.it_interval.tv_usec >= 10000 &&
              time.it_interval.tv_usec <= 12000,
          "%s: expected a period of about 10 ms, saw %ld us", what, time.it_interval.tv_usec);
}

static void spin_until_fired(int number, const char *what) {
    time_t end = time(NULL) + 10;
    while (fired[number] < 3) CHECK(time(NULL) < end, "%s: expected signals, saw %d", what, fired[number]);
}

int main(void) {
    int numbers[] = {SIGALRM, SIGVTALRM, SIGPROF, SIGRTMIN, SIGRTMIN + 1};
    for (int i = 0; i < 5; i++) catch_signal(numbers[i]);
    set_interval(ITIMER_REAL, 10000);
    set_interval(ITIMER_VIRTUAL, 10000);
    set_interval(ITIMER_PROF, 10000);
    timer_t deleted = make_timer(SIGEV_SIGNAL, SIGRTMIN, 1); // leaves a gap in the ids
    timer_t by_signal = make_timer(SIGEV_SIGNAL, SIGRTMIN, 4711);
    MUST(timer_delete(deleted));
    timer_t to_thread = make_timer(SIGEV_THREAD_ID, SIGRTMIN + 1, 0);
    struct sigevent quiet = {.sigev_notify = SIGEV_NONE};
    timer_t far, idle;
    MUST(timer_create(CLOCK_REALTIME, &quiet, &far));
    MUST(timer_settime(far, 0, &(struct itimerspec){{0, 0}, {3600, 0}}, NULL));
    MUST(timer_create(CLOCK_MONOTONIC, &quiet, &idle));
    ready_and_wait();
    check_timer(by_signal, "timer by signal");
    check_timer(to_thread, "timer to a thread");
    check_interval(ITIMER_REAL, "ITIMER_REAL");
    check_interval(ITIMER_VIRTUAL, "ITIMER_VIRTUAL");
    check_interval(ITIMER_PROF, "ITIMER_PROF");
    for (int i = 0; i < 128; i++) fired[i] = 0;
    for (int i = 0; i < 5; i++) spin_until_fired(numbers[i], strsignal(numbers[i]));
    CHECK(timer_value == 4711, "timer's value: expected 4711, saw %d", timer_value);
    CHECK(by_thread == gettid(), "timer's thread: expected %d, saw %d", gettid(), by_thread);
    struct itimerspec left;
    MUST(timer_gettime(far, &left));
    CHECK(left.it_value.tv_sec > 3000 && left.it_value.tv_sec <= 3600,
          "far timer: expected about an hour, saw %ld s", left.it_value.tv_sec);
    MUST(timer_gettime(idle, &left));
    CHECK(!left.it_value.tv_sec && !left.it_value.tv_nsec, "idle timer: expected unarmed");
    timer_t fresh = make_timer(SIGEV_SIGNAL, SIGRTMIN, 5);
    CHECK(fresh != by_signal && fresh != to_thread && fresh != far && fresh != idle,
          "new timer: expected an id of its own");
    pass();
}
