// The file mode mask and the working directory.
#include "check.h"
#include <sys/stat.h>

int main(void) {
    char before[4096], after[4096];
    mkdir("inner", 0755);
    MUST(chdir("inner"));
    umask(0137);
    CHECK(getcwd(before, sizeof before), "getcwd: %s", strerror(errno));
    ready_and_wait();
    CHECK(getcwd(after, sizeof after), "getcwd: %s", strerror(errno));
    CHECK(!strcmp(before, after), "cwd: expected %s, saw %s", before, after);
    unlink("made");
    int fd = MUST(open("made", O_CREAT | O_RDWR, 0777));
    struct stat status;
    MUST(fstat(fd, &status));
    CHECK((status.st_mode & 0777) == 0640, "mode: expected 0640, saw %o", status.st_mode & 0777);
    MUST(unlink("made"));
    CHECK(umask(0) == 0137, "umask: expected 0137");
    pass();
}
