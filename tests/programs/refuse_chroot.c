// A root directory other than the node's.
#include "check.h"
#include <sys/stat.h>

int main(void) {
    if (geteuid()) {
        note("UNAVAILABLE chroot needs root");
        pass();
    }
    mkdir("root", 0755);
    mkdir("root/inside", 0755);
    MUST(chroot("root"));
    MUST(chdir("/inside"));
    ready_and_wait();
    char cwd[64];
    CHECK(getcwd(cwd, sizeof cwd) && !strcmp(cwd, "/inside"), "getcwd: saw %s", cwd);
    pass();
}
