// A fanotify group that a clone could not have: its queue holds an event, or what KIND says.
#include "check.h"
#include <sys/fanotify.h>
#include <sys/prctl.h>

static int is_kind(const char *kind) {
    return getenv("KIND") && !strcmp(getenv("KIND"), kind);
}

// CAP_SYS_ADMIN goes with the identity.
static void give_up_rights(void) {
    MUST(setresgid(65534, 65534, 65534));
    MUST(setresuid(65534, 65534, 65534));
    MUST(prctl(PR_SET_DUMPABLE, 1));
}

int main(void) {
    unsigned class = is_kind("asked") ? FAN_CLASS_CONTENT : FAN_CLASS_NOTIF;
    unsigned whole = is_kind("mount") ? FAN_MARK_MOUNT : 0;
    int group = fanotify_init(class | FAN_NONBLOCK, O_RDONLY);
    if (group < 0) {
        note("UNAVAILABLE fanotify: %s", strerror(errno));
    } else {
        MUST(fanotify_mark(group, FAN_MARK_ADD | whole, FAN_CLOSE_WRITE, AT_FDCWD, "."));
        if (is_kind("rights")) give_up_rights();
        if (!getenv("KIND")) {
            MUST(fanotify_mark(group, FAN_MARK_ADD, FAN_OPEN | FAN_ONDIR, AT_FDCWD, "."));
            close(MUST(open(".", O_RDONLY | O_DIRECTORY)));
        }
    }
    ready_and_wait();
    pass();
}
