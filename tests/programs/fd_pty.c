// Pseudo-terminals with both ends in this process, one of which controls its session.
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>

static int open_master(int unlock) {
    int master = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)), locked = !unlock;
    MUST(ioctl(master, TIOCSPTLCK, &locked));
    return master;
}

static int open_slave(int master, int flags) {
    return MUST(ioctl(master, TIOCGPTPEER, flags | O_NOCTTY));
}

static void takes(int fd, const char *expected) {
    char got[64] = {0};
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    CHECK(poll(&readable, 1, 2000) == 1, "expected '%s' to arrive", expected);
    ssize_t bytes = read(fd, got, sizeof got - 1);
    CHECK(bytes == (ssize_t)strlen(expected) && !memcmp(got, expected, bytes), "expected '%s', saw %zd '%s'",
          expected, bytes, got);
}

static void says(int fd, const char *text) {
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write: %s", strerror(errno));
}

static void check_settings(int slave, const struct termios *before, const struct winsize *size) {
    struct termios now;
    struct winsize is;
    MUST(tcgetattr(slave, &now));
    CHECK(now.c_iflag == before->c_iflag && now.c_oflag == before->c_oflag && now.c_cflag == before->c_cflag &&
              now.c_lflag == before->c_lflag && !memcmp(now.c_cc, before->c_cc, sizeof now.c_cc),
          "settings: expected lflag %#x, saw %#x", before->c_lflag, now.c_lflag);
    MUST(ioctl(slave, TIOCGWINSZ, &is));
    CHECK(!memcmp(&is, size, sizeof is), "size: saw %d rows, %d columns", is.ws_row, is.ws_col);
}

static void check_one_terminal(int master, int slave) {
    int number, seen;
    char path[64];
    struct stat of_path, of_slave;
    MUST(ioctl(master, TIOCGPTN, &number));
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    CHECK(!strcmp(ttyname(slave) ?: "", path), "slave: expected %s, saw %s", path, ttyname(slave));
    MUST(stat(path, &of_path));
    MUST(fstat(slave, &of_slave));
    CHECK(of_path.st_rdev == of_slave.st_rdev, "expected one device");
    CHECK(of_slave.st_uid == 77 && (of_slave.st_mode & 07777) == 0620, "access: saw %u, %o", of_slave.st_uid, of_slave.st_mode);
    MUST(ioctl(slave, TIOCGPTN, &seen) == -1 ? 0 : -1);
}

int main(void) {
    MUST(setsid());
    int fresh = open_master(0), hung_up = open_master(1), packets = open_master(1);
    close(open_slave(hung_up, O_RDWR));
    int in_packets = open_slave(packets, O_RDWR), yes = 1, value;
    MUST(ioctl(packets, TIOCPKT, &yes));
    MUST(ioctl(in_packets, TIOCEXCL));
    // The slave has the lower number, and is open twice.
    int place = MUST(open("/dev/null", O_RDONLY)), master = open_master(1);
    int slave = MUST(dup2(open_slave(master, O_RDWR), place)), reader = open_slave(master, O_RDONLY | O_NONBLOCK);
    struct termios settings;
    struct winsize size = {.ws_row = 33, .ws_col = 111, .ws_xpixel = 5, .ws_ypixel = 6};
    MUST(tcgetattr(slave, &settings));
    settings.c_lflag &= ~(tcflag_t)ECHO;
    settings.c_cc[VINTR] = 5;
    MUST(tcsetattr(slave, TCSANOW, &settings));
    MUST(tcgetattr(slave, &settings));
    MUST(ioctl(master, TIOCSWINSZ, &size));
    MUST(fchown(slave, 77, -1));
    MUST(fchmod(slave, 0620));
    MUST(ioctl(slave, TIOCSCTTY, 0));
    sigset_t set = {0};
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int flags[] = {fcntl(master, F_GETFL), fcntl(slave, F_GETFL), fcntl(reader, F_GETFL)};
    ready_and_wait();
    check_settings(slave, &settings, &size);
    check_one_terminal(master, slave);
    says(master, "typed\n");
    takes(slave, "typed\n");
    says(master, "again\n");
    takes(reader, "again\n");
    says(slave, "shown\n");
    takes(master, "shown\r\n");
    REFUSED(write(reader, "x", 1), EBADF);
    REFUSED(read(reader, (char[1]){0}, 1), EAGAIN);
    CHECK(tcgetsid(slave) == getpid() && tcgetpgrp(slave) == getpid(), "session: saw %d, %d", tcgetsid(slave), tcgetpgrp(slave));
    close(MUST(open("/dev/tty", O_RDWR)));
    says(master, "\5");
    struct timespec second = {1, 0};
    CHECK(sigtimedwait(&set, NULL, &second) == SIGINT, "expected the terminal's interrupt");
    REFUSED(read(hung_up, (char[1]){0}, 1), EIO);
    MUST(ioctl(fresh, TIOCGPTLCK, &value));
    CHECK(value == 1, "fresh: expected it to be locked");
    struct pollfd idle = {.fd = fresh, .events = POLLIN};
    CHECK(poll(&idle, 1, 0) == 0, "fresh: saw %#x", idle.revents);
    MUST(ioctl(packets, TIOCGPKT, &value));
    CHECK(value == 1, "expected packet mode");
    MUST(ioctl(in_packets, TIOCGEXCL, &value));
    CHECK(value == 1, "expected exclusive mode");
    CHECK(fcntl(master, F_GETFD) == FD_CLOEXEC, "master: expected close-on-exec");
    int flags_now[] = {fcntl(master, F_GETFL), fcntl(slave, F_GETFL), fcntl(reader, F_GETFL)};
    for (int i = 0; i < 3; i++)
        CHECK(flags_now[i] == flags[i], "flags %d: expected %#x, saw %#x", i, flags[i], flags_now[i]);
    pass();
}
