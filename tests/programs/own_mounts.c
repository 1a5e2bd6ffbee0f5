// Bind mounts that nobody outside of the process's mount namespace has: a clone has them too.
#include "check.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

static char place[2048];

static char *in_place(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", place, name);
    return path;
}

static void write_file(const char *name, const char *text) {
    int fd = MUST(open(in_place(name), O_WRONLY | O_CREAT | O_TRUNC, 0644));
    ssize_t bytes = strlen(text);
    CHECK(write(fd, text, bytes) == bytes, "write: %s", strerror(errno));
    close(fd);
}

static void reads(const char *name, const char *expected) {
    char text[64] = {0};
    int fd = MUST(open(name, O_RDONLY));
    MUST(read(fd, text, sizeof text - 1));
    close(fd);
    CHECK(!strcmp(text, expected), "%s: expected '%s', saw '%s'", name, expected, text);
}

static void mount_bind(const char *from, const char *on, unsigned long more) {
    char source[4096];
    strcpy(source, in_place(from));
    MUST(mount(source, in_place(on), NULL, MS_BIND, NULL));
    if (more) MUST(mount(NULL, in_place(on), NULL, MS_REMOUNT | MS_BIND | more, NULL));
}

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE mounting needs root");
        pass();
    }
    CHECK(getcwd(place, sizeof place), "getcwd: %s", strerror(errno));
    MUST(unshare(CLONE_NEWNS));
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    const char *directories[] = {"from", "from/sub", "a point", "a point/sub"};
    for (int i = 0; i < 4; i++) mkdir(in_place(directories[i]), 0755);
    write_file("from/sub/file", "bound");
    write_file("a point/sub/file", "hidden");
    write_file("other", "other");
    write_file("from/sub/nested", "hidden, too");
    mount_bind("from", "a point", MS_RDONLY | MS_NOSUID);
    mount_bind("other", "a point/sub/nested", 0);
    MUST(chdir(in_place("a point/sub")));
    int fd = MUST(open("file", O_RDONLY));
    ready_and_wait();
    char cwd[4096], text[8] = {0};
    CHECK(getcwd(cwd, sizeof cwd), "getcwd: %s", strerror(errno));
    CHECK(!strcmp(cwd, in_place("a point/sub")), "getcwd: saw %s", cwd);
    CHECK(pread(fd, text, 7, 0) == 5 && !strcmp(text, "bound"), "fd: saw '%s'", text);
    reads("file", "bound");
    reads(in_place("a point/sub/file"), "bound");
    reads("nested", "other");
    REFUSED(open("new", O_WRONLY | O_CREAT, 0644), EROFS);
    close(MUST(open("nested", O_WRONLY)));
    close(MUST(open(in_place("from/sub/file"), O_WRONLY)));
    pass();
}
