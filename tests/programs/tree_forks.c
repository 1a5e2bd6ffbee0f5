// Children, grandchildren and their pipes; wait statuses, and signals at the end of a child.
#include "tree.h"
#include <pthread.h>

static volatile sig_atomic_t told;
static int pipe_in[2], pipe_out[2];
static uint8_t *own;

static void on_child(int signal, siginfo_t *info, void *context) {
    (void)context;
    if (signal == SIGCHLD) told += info->si_pid != 0;
}

static void *echo(void *arg) {
    (void)arg;
    char byte;
    while (read(pipe_in[0], &byte, 1) == 1) {
        byte++;
        CHECK(write(pipe_out[1], &byte, 1) == 1, "write: %s", strerror(errno));
    }
    return NULL;
}

// A child of several threads, one of which answers.
static void threads(void) {
    pthread_t thread;
    close(pipe_in[1]);
    close(pipe_out[0]);
    CHECK(pthread_create(&thread, NULL, echo, NULL) == 0, "pthread_create");
    own[PAGE] = 77;
    in_place();
    CHECK(own[PAGE] == 77, "expected what this process wrote, saw %d", own[PAGE]);
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
}

static pid_t father;

static void close_pipes(void) {
    for (int end = 0; end < 2; end++) close(pipe_in[end]), close(pipe_out[end]);
}

// Of another user, with a child of its own.
static void nested(void) {
    pid_t self = getpid();
    close_pipes();
    struct child below = child(in_place);
    MUST(setresuid(1234, 1234, 1234));
    in_place();
    CHECK(getpid() == self && getppid() == father, "expected pid %d of %d, saw %d of %d", self,
          father, getpid(), getppid());
    CHECK(getuid() == 1234, "expected uid 1234, saw %d", getuid());
    tell_and_reap(below);
}

static void exits(void) {
    close_pipes();
    in_place();
    _exit(42);
}

static void waits(void) {
    close_pipes();
    in_place();
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART};
    father = getpid();
    own = filled(4 * PAGE, 3);
    MUST(pipe2(pipe_in, O_CLOEXEC));
    MUST(pipe2(pipe_out, O_CLOEXEC));
    struct child with_threads = child(threads), with_child = child(nested), exiting = child(exits);
    struct child quiet = child(waits);
    close(pipe_in[0]);
    close(pipe_out[1]);
    MUST(sigaction(SIGCHLD, &action, NULL));
    CHECK(write(pipe_in[1], "a", 1) == 1, "write");
    char byte;
    CHECK(read(pipe_out[0], &byte, 1) == 1 && byte == 'b', "expected b, saw %c", byte);
    ready_and_wait();
    CHECK(told == 0, "expected no signal before a child has ended, saw %d", told);
    CHECK_FILLED(own, 4 * PAGE, 3);
    CHECK(write(pipe_in[1], "x", 1) == 1, "write");
    CHECK(read(pipe_out[0], &byte, 1) == 1 && byte == 'y', "expected y, saw %c", byte);
    close(pipe_in[1]);
    tell_and_reap(with_threads);
    CHECK(read(pipe_out[0], &byte, 1) == 0, "expected the end of the pipe: nobody writes");
    CHECK(told == 1, "expected one signal after one child, saw %d", told);
    tell_and_reap(with_child);
    tell(exiting);
    int status = 0;
    while (waitpid(exiting.pid, &status, 0) != exiting.pid) CHECK(errno == EINTR, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "expected exit 42, saw %#x", status);
    MUST(kill(quiet.pid, SIGTERM));
    while (waitpid(quiet.pid, &status, 0) != quiet.pid) CHECK(errno == EINTR, "waitpid");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "expected SIGTERM, saw %#x", status);
    CHECK(told == 4, "expected four signals after four children, saw %d", told);
    REFUSED(waitpid(-1, NULL, WNOHANG), ECHILD);
    pass();
}
