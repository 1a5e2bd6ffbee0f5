// Watches: on a directory, a file and a symbolic link, with their numbers and options. The parent
// and other clones work in the same places: everyone looks for the events of its own doing.
#include "check.h"
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>

static char buffer[64 << 10] __attribute__((aligned(8)));
static size_t filled_bytes;

static void drain(int events) {
    for (ssize_t got = 1; got > 0; filled_bytes += got < 0 ? 0 : got)
        got = read(events, buffer + filled_bytes, sizeof buffer - filled_bytes);
    CHECK(errno == EAGAIN, "read: %s", strerror(errno));
}

// Whether there was this event, about `name` if that is given.
static int has(int watch, uint32_t mask, const char *name) {
    for (size_t at = 0; at < filled_bytes;) {
        const struct inotify_event *event = (void *)(buffer + at);
        at += sizeof *event + event->len;
        if (event->wd == watch && event->mask == mask && (!name || (event->len && !strcmp(event->name, name)))) return 1;
    }
    return 0;
}

#define EXPECT(watch, mask, name) CHECK(has(watch, mask, name), "expected " #mask " on " #watch)

static void touch(const char *directory, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    close(MUST(open(path, O_CREAT | O_RDWR, 0644)));
}

int main(void) {
    mkdir("watched", 0755);
    mkdir("once", 0755);
    mkdir("gone", 0755);
    close(MUST(open("file", O_CREAT | O_RDWR, 0644)));
    unlink("link");
    MUST(symlink("nowhere", "link"));
    int events = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), idle = MUST(inotify_init1(0));
    int gone = MUST(inotify_add_watch(events, "gone", IN_CREATE));
    int watched = MUST(inotify_add_watch(events, "watched", IN_CREATE | IN_OPEN | IN_EXCL_UNLINK));
    int file = MUST(inotify_add_watch(events, "file", IN_MODIFY));
    int link = MUST(inotify_add_watch(events, "link", IN_DONT_FOLLOW | IN_ATTRIB));
    int once = MUST(inotify_add_watch(events, "once", IN_CREATE | IN_ONESHOT));
    MUST(inotify_rm_watch(events, gone));
    drain(events);
    CHECK(has(gone, IN_IGNORED, NULL), "expected the removed watch to be ignored");
    filled_bytes = 0;
    ready_and_wait();
    struct timespec now;
    char name[64];
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(name, sizeof name, "new-%ld-%ld", now.tv_sec, now.tv_nsec);
    touch("watched", name);
    touch("once", name);
    touch("gone", name);
    int again = MUST(open("file", O_WRONLY));
    CHECK(write(again, "x", 1) == 1, "write: %s", strerror(errno));
    MUST(fchownat(AT_FDCWD, "link", 0, 0, AT_SYMLINK_NOFOLLOW));
    drain(events);
    EXPECT(watched, IN_CREATE, name);
    EXPECT(watched, IN_OPEN, name);
    EXPECT(file, IN_MODIFY, NULL);
    EXPECT(link, IN_ATTRIB, NULL);
    EXPECT(once, IN_CREATE, NULL);
    EXPECT(once, IN_IGNORED, NULL);
    CHECK(!has(gone, IN_CREATE, NULL), "expected nothing of the watch that was removed");
    CHECK(inotify_add_watch(events, "watched", IN_CREATE) == watched, "expected the same watch again");
    int later = MUST(inotify_add_watch(events, "gone", IN_CREATE));
    CHECK(later > once, "expected a number of its own, saw %d", later);
    CHECK(fcntl(events, F_GETFL) == O_NONBLOCK && fcntl(events, F_GETFD) == FD_CLOEXEC, "flags");
    CHECK(fcntl(idle, F_GETFL) == 0, "flags of the idle one: saw %#x", fcntl(idle, F_GETFL));
    pass();
}
