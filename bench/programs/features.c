// A process with so many of each kind of thing, which says "ready" and waits.
//
// usage: features DIRECTORY KIND=COUNT...
//
// Every kind is made as programs make it, and used once where an unused one would cost less: pages
// are touched, epolls watch something.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static char path[4096];

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void *sleep_for_ever(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

static void make_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16 * PAGE);
    must(pthread_create(&thread, &attributes, sleep_for_ever, NULL) == 0, "pthread_create");
}

// A page between two that are not mapped, so that no two are one.
static char *map_apart(int flags, int fd)
{
    char *at = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED, "mmap");
    int access = PROT_READ | PROT_WRITE;
    must(mmap(at + PAGE, PAGE, access, flags | MAP_FIXED, fd, 0) != MAP_FAILED, "mmap");
    munmap(at, PAGE);
    munmap(at + 2 * PAGE, PAGE);
    return at + PAGE;
}

static int open_file(void)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    must(fd >= 0 && ftruncate(fd, PAGE) == 0, "open");
    return fd;
}

static void make_anonymous(void) { *map_apart(MAP_PRIVATE | MAP_ANONYMOUS, -1) = 1; }

static void make_mapping(int flags)
{
    int fd = open_file();
    *map_apart(flags, fd) = 1;
    close(fd);
}

static void make_private_file(void) { make_mapping(MAP_PRIVATE); }
static void make_shared_file(void) { make_mapping(MAP_SHARED); }
static void make_shared(void) { *map_apart(MAP_SHARED | MAP_ANONYMOUS, -1) = 1; }
static void make_file(void) { open_file(); }

static void make_directory(void)
{
    must(open("/", O_RDONLY | O_DIRECTORY) >= 0, "open");
}

static void make_pipe(void)
{
    int ends[2];
    must(pipe(ends) == 0, "pipe");
}

static void make_socketpair(void)
{
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
}

static void make_eventfd(void) { must(eventfd(1, 0) >= 0, "eventfd"); }
static void make_timerfd(void) { must(timerfd_create(CLOCK_MONOTONIC, 0) >= 0, "timerfd_create"); }
static void make_memfd(void) { must(memfd_create("features", 0) >= 0, "memfd_create"); }
static void make_udp(void) { must(socket(AF_INET, SOCK_DGRAM, 0) >= 0, "socket"); }

static void make_signalfd(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    must(signalfd(-1, &set, 0) >= 0, "signalfd");
}

static void make_epoll(void)
{
    static int watched = -1;
    if (watched < 0)
        watched = eventfd(0, 0);
    int epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, watched, &event) == 0, "epoll_ctl");
}

static void make_inotify(void)
{
    must(inotify_add_watch(inotify_init(), path, IN_DELETE_SELF) >= 0, "inotify_add_watch");
}

static void make_listener(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    must(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0, "setsockopt");
    must(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0, "listen");
}

static void make_fanotify(void)
{
    int group = fanotify_init(FAN_CLASS_NOTIF, O_RDONLY);
    must(fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, path) == 0, "fanotify_mark");
}

static void make_aio(void)
{
    aio_context_t context = 0;
    must(syscall(SYS_io_setup, 8, &context) == 0, "io_setup");
}

static void make_pidfd(void) { must(syscall(SYS_pidfd_open, getpid(), 0) >= 0, "pidfd_open"); }

static void make_terminal(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    must(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0, "posix_openpt");
    must(open(ptsname(master), O_RDWR | O_NOCTTY) >= 0, "open");
}

static void make_raw(void) { must(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0, "socket"); }

static void make_packet(void)
{
    must(socket(AF_PACKET, SOCK_RAW, htons(ETHERTYPE_LOOPBACK)) >= 0, "socket");
}

static void make_timer(void)
{
    timer_t timer;
    must(timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0, "timer_create");
}

static const struct {
    const char *name;
    void (*make)(void);
} kinds[] = {
    { "thread", make_thread },       { "anonymous", make_anonymous },
    { "private-file", make_private_file }, { "shared-file", make_shared_file },
    { "shared", make_shared },       { "file", make_file },
    { "directory", make_directory }, { "pipe", make_pipe },
    { "socketpair", make_socketpair }, { "eventfd", make_eventfd },
    { "timerfd", make_timerfd },     { "signalfd", make_signalfd },
    { "epoll", make_epoll },         { "memfd", make_memfd },
    { "inotify", make_inotify },     { "udp", make_udp },
    { "listener", make_listener },   { "fanotify", make_fanotify },
    { "aio", make_aio },             { "pidfd", make_pidfd },
    { "terminal", make_terminal },   { "raw", make_raw },
    { "packet", make_packet },       { "timer", make_timer },
};

static void make(const char *wanted)
{
    const char *count = strchr(wanted, '=');
    must(count != NULL, wanted);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        size_t length = strlen(kinds[kind].name);
        if (length != (size_t)(count - wanted) || strncmp(wanted, kinds[kind].name, length) != 0)
            continue;
        for (int left = atoi(count + 1); left > 0; left--)
            kinds[kind].make();
        return;
    }
    must(0, wanted);
}

int main(int count, char **arguments)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    must(count > 1, "a directory");
    snprintf(path, sizeof path, "%s/mapped-%d", arguments[1], getpid());
    close(open_file());
    for (int index = 2; index < count; index++)
        make(arguments[index]);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
