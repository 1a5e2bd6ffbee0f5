// A fanotify group, whose marks are on what the node has.
#include "check.h"
#include <sys/fanotify.h>

int main(void) {
    int group = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
    if (group < 0) note("UNAVAILABLE fanotify: %s", strerror(errno));
    else MUST(fanotify_mark(group, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "."));
    ready_and_wait();
    close(MUST(open(".", O_RDONLY | O_DIRECTORY)));
    char event[256];
    if (group >= 0) REFUSED(read(group, event, sizeof event), EAGAIN); // FAN_ONDIR was not asked for
    pass();
}
