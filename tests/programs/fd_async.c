// Descriptors that signal their owner when they become ready.
#include "check.h"
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

static int awaits(sigset_t *set, siginfo_t *info) {
    struct timespec second = {1, 0};
    int signal;
    do signal = sigtimedwait(set, info, &second);
    while (signal < 0 && errno == EINTR);
    return signal;
}

// Has a socket send itself a datagram.
static void send_to_itself(int fd) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof to;
    MUST(bind(fd, (struct sockaddr *)&to, bytes));
    MUST(getsockname(fd, (struct sockaddr *)&to, &bytes));
    CHECK(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, bytes) == 1, "sendto: %s", strerror(errno));
}

int main(void) {
    int plain[2], chosen[2];
    sigset_t set = {0};
    sigaddset(&set, SIGIO);
    sigaddset(&set, SIGRTMIN + 3);
    sigprocmask(SIG_BLOCK, &set, NULL);
    MUST(pipe(plain));
    MUST(pipe2(chosen, O_NONBLOCK));
    MUST(fcntl(plain[0], F_SETOWN, getpid()));
    MUST(fcntl(plain[0], F_SETFL, O_ASYNC));
    MUST(fcntl(chosen[0], F_SETOWN, getpid()));
    MUST(fcntl(chosen[0], F_SETSIG, SIGRTMIN + 3));
    MUST(fcntl(chosen[0], F_SETFL, O_ASYNC | O_NONBLOCK));
    int datagrams = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(fcntl(datagrams, F_SETOWN, getpid()));
    MUST(fcntl(datagrams, F_SETSIG, SIGRTMIN + 3));
    MUST(fcntl(datagrams, F_SETFL, O_ASYNC));
    ready_and_wait();
    siginfo_t info;
    CHECK(fcntl(chosen[0], F_GETFL) == (O_ASYNC | O_NONBLOCK), "flags: saw %#x", fcntl(chosen[0], F_GETFL));
    CHECK(write(plain[1], "x", 1) == 1, "write: %s", strerror(errno));
    CHECK(awaits(&set, &info) == SIGIO, "expected SIGIO");
    CHECK(write(chosen[1], "x", 1) == 1, "write: %s", strerror(errno));
    CHECK(awaits(&set, &info) == SIGRTMIN + 3, "expected the chosen signal");
    CHECK(info.si_fd == chosen[0], "expected fd %d, saw %d", chosen[0], info.si_fd);
    CHECK(fcntl(datagrams, F_GETFL) == (O_ASYNC | O_RDWR), "flags: saw %#x", fcntl(datagrams, F_GETFL));
    send_to_itself(datagrams);
    CHECK(awaits(&set, &info) == SIGRTMIN + 3, "expected the chosen signal of the socket");
    CHECK(info.si_fd == datagrams, "expected fd %d, saw %d", datagrams, info.si_fd);
    pass();
}
