// Memory that a fork inherits as it is, so that a seed's frozen copy is looked at while the program goes on. On
// 'c' all of it changes. On 'd' and 'p' a part is kept from forks or wiped in them, on 'n' neither; on 'u' another
// process supplies the pages of a part.
#include "check.h"
#include <signal.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#define BYTES (3 * HUGE + 5 * PAGE)
#define PART (16 * PAGE)
#define GUARD_INSTALL 102

static unsigned generation = 1;
static uint8_t *private_, *part, *file, *no_access, *guarded, *read_only;
static int is_guarded;

static void write_all(void) {
    fill(private_, BYTES, generation);
    fill(part, PART, generation + 1);
    fill(file, PAGE, generation + 2);
    fill(guarded, 4 * PAGE, generation + 3);
    MUST(mprotect(no_access, 4 * PAGE, PROT_READ | PROT_WRITE));
    fill(no_access, 4 * PAGE, generation + 4);
    MUST(mprotect(no_access, 4 * PAGE, PROT_NONE));
}

static void check_all(void) {
    CHECK_FILLED(private_, BYTES, generation);
    CHECK_ZEROS(private_ + BYTES, 3 * HUGE);
    CHECK_FILLED(part, PART, generation + 1);
    CHECK_FILLED(file, PAGE, generation + 2);
    CHECK_FILLED(guarded, 4 * PAGE, generation + 3);
    CHECK(memcmp(file + PAGE, read_only + PAGE, PAGE) == 0, "two mappings of a file differ");
    MUST(mprotect(no_access, 4 * PAGE, PROT_READ));
    CHECK_FILLED(no_access, 4 * PAGE, generation + 4);
    MUST(mprotect(no_access, 4 * PAGE, PROT_NONE));
    int pair[2];
    MUST(pipe(pair));
    if (is_guarded) {
        REFUSED(write(pair[1], guarded + 4 * PAGE, 1), EFAULT);
    }
    close(pair[0]);
    close(pair[1]);
}

// A process that is not a child has the descriptor by which pages are supplied; it ends with this one.
static void let_another_supply(void) {
    int fd = MUST(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    struct uffdio_api api = {.api = UFFD_API};
    MUST(ioctl(fd, UFFDIO_API, &api));
    uint8_t *at = anonymous(PART);
    struct uffdio_register range = {
        .range = {(uintptr_t)at, PART}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    MUST(ioctl(fd, UFFDIO_REGISTER, &range));
    pid_t own = getpid(), child = MUST(fork());
    if (child == 0) {
        if (fork() == 0) {
            for (int i = 0; i < 1200 && kill(own, 0) == 0; i++) usleep(50 * 1000);
        }
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    close(fd);
}

static void *mapped(int fd, size_t bytes, int prot, int flags) {
    void *at = mmap(NULL, bytes, prot, flags, fd, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    return at;
}

int main(void) {
    private_ = anonymous(BYTES + 3 * HUGE); // the rest is never touched
    part = anonymous(PART);
    guarded = anonymous(8 * PAGE);
    int program = MUST(open("/proc/self/exe", O_RDONLY));
    file = mapped(program, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    read_only = mapped(program, 2 * PAGE, PROT_READ, MAP_SHARED);
    close(program);
    no_access = anonymous(4 * PAGE);
    is_guarded = raw_madvise(guarded + 4 * PAGE, PAGE, GUARD_INSTALL) == 0; // Linux 6.13
    write_all();
    for (char command = ready_and_wait(); command != '\n';) {
        switch (command) {
        case 'c': generation += 10, write_all(); break;
        case 'v': check_all(); break;
        case 'n': MUST(raw_madvise(part, PART, MADV_DOFORK)), MUST(raw_madvise(part, PART, MADV_KEEPONFORK)); break;
        case 'd': MUST(raw_madvise(part, PART, MADV_DONTFORK)); break;
        case 'p': MUST(raw_madvise(part, PART, MADV_WIPEONFORK)); break;
        case 'u': let_another_supply(); break;
        default: FAIL("unknown command %c", command);
        }
        if (write(1, "OK\n", 3) != 3) _exit(3);
        MUST(read(0, &command, 1));
    }
    check_all();
    printf("GENERATION %u\n", generation);
    fflush(stdout);
    pass();
}
