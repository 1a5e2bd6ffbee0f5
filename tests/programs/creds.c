// Credentials that were dropped stay dropped: what could not be read cannot be read.
#include "check.h"
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define USER 1000
#define GROUP 1001

static void check_ids(void) {
    uid_t real, effective, saved;
    gid_t groups[8];
    getresuid(&real, &effective, &saved);
    CHECK(real == USER && effective == USER && saved == USER, "uids: expected %d, saw %d %d %d", USER,
          real, effective, saved);
    getresgid(&real, &effective, &saved);
    CHECK(real == GROUP && effective == GROUP && saved == GROUP, "gids: expected %d, saw %d %d %d",
          GROUP, real, effective, saved);
    int count = getgroups(8, groups);
    CHECK(count == 2 && groups[0] == 2000 && groups[1] == 2001, "groups: expected 2000 2001, saw %d",
          count);
}

static void check_capabilities(void) {
    struct {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    uint32_t data[6] = {0};
    MUST(syscall(SYS_capget, &header, data));
    for (int i = 0; i < 6; i++) CHECK(!data[i], "capabilities: expected none, saw %#x", data[i]);
    CHECK(prctl(PR_CAPBSET_READ, 21) == 0, "bounding set: expected CAP_SYS_ADMIN dropped");
    CHECK(prctl(PR_CAPBSET_READ, 1) == 1, "bounding set: expected CAP_DAC_OVERRIDE kept");
}

int main(void) {
    if (geteuid()) {
        ready_and_wait();
        note("not root: nothing to drop");
        pass();
    }
    int fd = MUST(open("secret", O_CREAT | O_RDWR, 0600));
    MUST(fchmod(fd, 0600));
    close(fd);
    MUST(prctl(PR_CAPBSET_DROP, 21));
    MUST(setgroups(2, (gid_t[]){2000, 2001}));
    MUST(setresgid(GROUP, GROUP, GROUP));
    MUST(setresuid(USER, USER, USER));
    REFUSED(open("secret", O_RDONLY), EACCES);
    ready_and_wait();
    check_ids();
    check_capabilities();
    REFUSED(open("secret", O_RDONLY), EACCES);
    REFUSED(setuid(0), EPERM);
    REFUSED(setgroups(0, NULL), EPERM);
    pass();
}
