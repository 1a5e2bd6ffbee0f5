// A program in a memfd that is open for writing as it was made: the kernel executes it all the same.
#include "check.h"
#include <sys/wait.h>

static void copy(const char *path, int to) {
    char buffer[65536];
    ssize_t got;
    int from = MUST(open(path, O_RDONLY));
    while ((got = read(from, buffer, sizeof buffer)) > 0) {
        CHECK(write(to, buffer, got) == got, "write: %s", strerror(errno));
    }
    close(from);
}

static void runs(int fd) {
    int status;
    pid_t pid = MUST(fork());
    if (pid == 0) {
        char *const arguments[] = {"true", NULL}, *const environment[] = {NULL};
        syscall(SYS_execveat, fd, "", arguments, environment, AT_EMPTY_PATH);
        _exit(errno);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "execveat: %s", strerror(WEXITSTATUS(status)));
}

int main(void) {
    int fd = MUST(memfd_create("program", 0)), sealed = MUST(memfd_create("sealed", MFD_ALLOW_SEALING));
    copy("/bin/true", fd);
    copy("/bin/true", sealed);
    MUST(lseek(fd, 100, SEEK_SET));
    int same = MUST(dup(fd));
    MUST(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    ready_and_wait();
    runs(fd);
    runs(sealed);
    CHECK(lseek(same, 0, SEEK_CUR) == 100, "offset: expected 100");
    MUST(lseek(fd, 7, SEEK_SET));
    CHECK(lseek(same, 0, SEEK_CUR) == 7, "offset of the duplicate: expected 7");
    CHECK(pwrite(fd, "#", 1, 0) == 1, "pwrite: %s", strerror(errno));
    REFUSED(pwrite(sealed, "#", 1, 0), EPERM);
    pass();
}
