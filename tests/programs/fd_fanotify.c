// A fanotify group: marks on a directory with its names, on a file, on a file system, and events that
// are not told. The parent and other clones work in the same places: everyone looks for the events of
// its own doing.
#include "check.h"
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <time.h>

#ifndef FAN_REPORT_DFID_NAME
#define FAN_REPORT_DFID_NAME 0xc00
#endif
#ifndef FAN_MARK_IGNORE_SURV
#define FAN_MARK_IGNORE_SURV 0x440
#endif

static char buffer[256 << 10] __attribute__((aligned(8)));
static size_t filled_bytes;

static void drain(int group) {
    filled_bytes = 0;
    for (ssize_t got = 1; got > 0; filled_bytes += got < 0 ? 0 : got)
        got = read(group, buffer + filled_bytes, sizeof buffer - filled_bytes);
    CHECK(errno == EAGAIN, "read: %s", strerror(errno));
}

// Whether there was this event of a file with this name, by this process.
static int has(uint64_t mask, const char *name) {
    for (size_t at = 0; at < filled_bytes;) {
        const struct fanotify_event_metadata *event = (void *)(buffer + at);
        const struct fanotify_event_info_fid *info = (void *)(event + 1);
        const struct file_handle *handle = (void *)info->handle;
        const char *of = (const char *)handle->f_handle + handle->handle_bytes;
        at += event->event_len;
        if (event->event_len > sizeof *event && event->pid == getpid() && event->mask & mask && !strcmp(of, name)) return 1;
    }
    return 0;
}

#define EXPECT(mask, name) CHECK(has(mask, name), "expected " #mask " of %s", name)
#define EXPECT_NONE(mask, name) CHECK(!has(mask, name), "expected no " #mask " of %s", name)

static void touch(const char *directory, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    close(MUST(open(path, O_CREAT | O_RDWR, 0644)));
}

static int marked(int group, unsigned flags, uint64_t mask, const char *path) {
    return MUST(fanotify_mark(group, FAN_MARK_ADD | flags, mask, AT_FDCWD, path));
}

static char before[4096], after[4096];

// The marks, as the kernel shows them.
static void look(int group, char *into) {
    char path[64], *marks;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", group);
    int shown = MUST(open(path, O_RDONLY));
    into[MUST(read(shown, into, sizeof before - 1))] = 0;
    close(shown);
    CHECK((marks = strstr(into, "fanotify")), "expected marks, saw %s", into);
    memmove(into, marks, strlen(marks) + 1);
}

int main(void) {
    mkdir("watched", 0755);
    touch(".", "file");
    int group = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC | FAN_REPORT_DFID_NAME, O_RDONLY | O_LARGEFILE);
    if (group < 0) {
        note("UNAVAILABLE fanotify: %s", strerror(errno));
    } else {
        marked(group, 0, FAN_CREATE | FAN_OPEN | FAN_EVENT_ON_CHILD | FAN_ONDIR, "watched");
        marked(group, FAN_MARK_IGNORE_SURV, FAN_ACCESS | FAN_OPEN | FAN_ONDIR, "watched");
        marked(group, 0, FAN_MODIFY, "file");
        // Of a file system much is told that others do: what nobody does here.
        marked(group, FAN_MARK_FILESYSTEM, FAN_MOVE_SELF, "/dev/shm");
        drain(group);
        look(group, before);
    }
    ready_and_wait();
    look(group, after);
    CHECK(!strcmp(before, after), "expected the marks\n%s, saw\n%s", before, after);
    struct timespec now;
    char name[64];
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(name, sizeof name, "new-%ld-%ld", now.tv_sec, now.tv_nsec);
    touch("watched", name);
    mkdir("watched/inner", 0755);
    close(MUST(open("watched", O_RDONLY | O_DIRECTORY)));
    int again = MUST(open("file", O_WRONLY));
    CHECK(write(again, "x", 1) == 1, "write: %s", strerror(errno));
    drain(group);
    EXPECT(FAN_CREATE, name);
    EXPECT(FAN_OPEN, name);
    EXPECT(FAN_MODIFY, "file");
    EXPECT_NONE(FAN_OPEN, "."); // of the directory itself, which is ignored
    CHECK(fcntl(group, F_GETFL) & O_NONBLOCK, "flags: saw %#x", fcntl(group, F_GETFL));
    CHECK(fcntl(group, F_GETFD) == FD_CLOEXEC, "expected close-on-exec");
    MUST(fanotify_mark(group, FAN_MARK_REMOVE, FAN_CREATE, AT_FDCWD, "watched"));
    pass();
}
