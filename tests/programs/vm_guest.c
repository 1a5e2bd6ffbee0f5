// A monitor and its guest in one: memory that a page server fills, handed over as Firecracker does.
// Arguments: the server's socket, the memory file, and N. After a byte it compares every Nth page with the file.
#include "check.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static void hand_over(int server, int faults, uint64_t start, uint64_t bytes) {
    char text[256];
    int length = snprintf(text, sizeof text,
                          "[{\"base_host_virt_addr\":%lu,\"size\":%lu,\"offset\":0,\"page_size\":4096,"
                          "\"page_size_kib\":4096}]",
                          (unsigned long)start, (unsigned long)bytes);
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof faults)];
    } control = {{0}};
    struct iovec part = {text, (size_t)length};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){CMSG_LEN(sizeof faults), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(rights), &faults, sizeof faults);
    CHECK(sendmsg(server, &message, 0) == length, "expected to send all, saw %s", strerror(errno));
}

int main(int count, char **words) {
    CHECK(count == 4, "expected a socket, a file and a number");
    int file = MUST(open(words[2], O_RDONLY | O_CLOEXEC));
    size_t step = strtoul(words[3], NULL, 10);
    struct stat found;
    MUST(fstat(file, &found));
    size_t bytes = (size_t)found.st_size;
    uint8_t *memory = anonymous(bytes);
    int faults = (int)MUST(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE};
    MUST(ioctl(faults, UFFDIO_API, &api));
    struct uffdio_register range = {{(uint64_t)memory, bytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
    MUST(ioctl(faults, UFFDIO_REGISTER, &range));
    int server = connect_to(words[1]);
    hand_over(server, faults, (uint64_t)memory, bytes);
    ready_and_wait();
    char expected[PAGE];
    for (size_t at = 0; at < bytes; at += step * PAGE) {
        CHECK(pread(file, expected, PAGE, (off_t)at) == (ssize_t)PAGE, "expected a page at %zu", at);
        CHECK(memcmp(memory + at, expected, PAGE) == 0, "page %zu is another", at / PAGE);
    }
    pass();
}
