// A terminal with a session in it: its master in the parent, a shell-like leader, one job in the
// foreground and one in the background.
#include "tree.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

static int master, slave, told[2];
static struct child foreground, background;

static void on_interrupt(int signal) {
    (void)signal;
    if (write(told[1], "i", 1) != 1) _exit(4);
}

static void job(void) {
    MUST(setpgid(0, 0));
    signal(SIGINT, on_interrupt);
    in_place();
    in_place();
}

static void check_terminal(pid_t session, pid_t group) {
    int own = MUST(open("/dev/tty", O_RDWR | O_NOCTTY));
    CHECK(MUST(tcgetsid(own)) == session, "session: expected %d, saw %d", session, tcgetsid(own));
    CHECK(MUST(tcgetpgrp(own)) == group, "foreground: expected %d, saw %d", group, tcgetpgrp(own));
    CHECK(!strcmp(ttyname(own) ?: "", "/dev/tty"), "saw %s", ttyname(own));
    close(own);
}

// Cannot read while it is in the background, as any job.
static void background_job(void) {
    MUST(setpgid(0, 0));
    signal(SIGINT, on_interrupt);
    signal(SIGTTIN, SIG_IGN);
    in_place();
    char byte;
    check_terminal(getsid(0), MUST(tcgetpgrp(slave)));
    REFUSED(read(slave, &byte, 1), EIO);
}

static void leader(void) {
    close(master);
    MUST(setsid());
    MUST(ioctl(slave, TIOCSCTTY, 0));
    signal(SIGTTOU, SIG_IGN);
    signal(SIGINT, on_interrupt);
    int to = to_parent;
    foreground = child(job);
    background = child(background_job);
    to_parent = to;
    MUST(tcsetpgrp(slave, foreground.pid));
    in_place();
    check_terminal(getpid(), foreground.pid);
    char byte;
    tell_and_reap(background);
    in_place(); // the parent interrupts
    tell(foreground);
    CHECK(read(foreground.socket, &byte, 1) == 1, "the job has ended");
    tell_and_reap(foreground);
    MUST(tcsetpgrp(slave, getpid()));
    CHECK(read(slave, &byte, 1) == 1 && byte == 'k', "expected a key, saw %d", byte);
    CHECK(write(slave, "!", 1) == 1, "write: %s", strerror(errno));
    in_place();
}

static void reads_from(int fd, char expected) {
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    char byte = 0;
    CHECK(poll(&readable, 1, 5000) == 1 && read(fd, &byte, 1) == 1, "expected '%c', saw nothing", expected);
    CHECK(byte == expected, "expected '%c', saw '%c'", expected, byte);
}

int main(void) {
    struct termios raw;
    char byte, interrupt;
    int unlocked = 0;
    master = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY));
    MUST(ioctl(master, TIOCSPTLCK, &unlocked));
    slave = MUST(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    MUST(tcgetattr(slave, &raw));
    raw.c_lflag &= ~(ICANON | ECHO);
    interrupt = raw.c_cc[VINTR];
    MUST(tcsetattr(slave, TCSANOW, &raw));
    MUST(pipe2(told, O_NONBLOCK));
    struct child shell = child(leader);
    close(slave);
    ready_and_wait();
    tell(shell);
    CHECK(read(shell.socket, &byte, 1) == 1, "the shell has ended");
    CHECK(write(master, &interrupt, 1) == 1, "write: %s", strerror(errno));
    reads_from(told[0], 'i');
    REFUSED(read(told[0], &byte, 1), EAGAIN); // only the job in the foreground was interrupted
    tell(shell);
    CHECK(write(master, "k", 1) == 1, "write: %s", strerror(errno));
    reads_from(master, '!');
    CHECK(read(shell.socket, &byte, 1) == 1, "the shell has ended");
    tell_and_reap(shell);
    pass();
}
