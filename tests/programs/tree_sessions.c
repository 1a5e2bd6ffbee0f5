// Sessions and groups: led by members, by a child for a sibling, and by processes long dead; and
// orphans that a subreaper got.
#include "tree.h"

struct place {
    pid_t pid, parent, session, group;
};

enum { LEADER, IN_SESSION, BEFORE, GROUP_LEADER, IN_GROUP, IN_DEAD_GROUP, DAEMON, BELOW, PLACES };
static struct place *places; // shared, so that each process finds its own
static pid_t root;

static struct place here(void) {
    return (struct place){getpid(), getppid(), getsid(0), getpgid(0)};
}

static void check_place(int which) {
    struct place was = places[which], is = here();
    CHECK(is.pid == was.pid && is.parent == was.parent,
          "process %d: expected pid %d of %d, saw %d of %d", which, was.pid, was.parent, is.pid, is.parent);
    CHECK(is.session == was.session, "process %d: expected session %d, saw %d", which, was.session, is.session);
    CHECK(is.group == was.group, "process %d: expected group %d, saw %d", which, was.group, is.group);
}

static void settle(int which) {
    places[which] = here();
    in_place();
    check_place(which);
}

static void in_session(void) { settle(IN_SESSION); }
static void before(void) { settle(BEFORE); }

// Has a child in the session that it comes from, and one in its own.
static void leader(void) {
    struct child early = child(before);
    MUST(setsid());
    struct child late = child(in_session);
    settle(LEADER);
    tell_and_reap(early);
    tell_and_reap(late);
}

static void group_leader(void) {
    MUST(setpgid(0, 0));
    settle(GROUP_LEADER);
}

static pid_t to_join;

static void in_group(void) {
    MUST(setpgid(0, to_join));
    settle(IN_GROUP);
}

static void in_dead_group(void) {
    MUST(setpgid(0, to_join));
    settle(IN_DEAD_GROUP);
}

static void ends_at_once(void) {
    MUST(setpgid(0, 0));
    in_place();
}

static int daemon_ends[2], below_ends[2];

// A process whose parent ends at once, which makes it the root's.
static void leave_orphan(int socket, int which) {
    pid_t middle = MUST(fork());
    if (middle == 0) {
        if (MUST(fork()) == 0) {
            while (getppid() != root) usleep(1000);
            to_parent = socket;
            settle(which);
            _exit(0);
        }
        _exit(0);
    }
    reap(middle);
}

// What becomes a daemon: its session's leader ends.
static void daemon_maker(void) {
    MUST(setsid());
    leave_orphan(daemon_ends[1], DAEMON);
    in_place();
}

// A shell that lives, with something in the background that is no longer its child.
static void shell(void) {
    MUST(setsid());
    leave_orphan(below_ends[1], BELOW);
    in_place();
}

static void above_shell(void) {
    struct child below = child(shell);
    in_place();
    tell_and_reap(below);
}

// The other end of the socket of an orphan that has come to its place.
static struct child orphan(int *ends, int which) {
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1, "orphan %d did not come to its place", which);
    return (struct child){.pid = places[which].pid, .socket = ends[0]};
}

int main(void) {
    places = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(places != MAP_FAILED, "mmap: %s", strerror(errno));
    root = getpid();
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, daemon_ends));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, below_ends));
    struct child leading = child(leader), group = child(group_leader);
    to_join = group.pid;
    struct child joined = child(in_group), dead = child(ends_at_once);
    to_join = dead.pid;
    struct child left = child(in_dead_group), maker = child(daemon_maker);
    struct child shells = child(above_shell);
    tell_and_reap(dead);
    tell_and_reap(maker);
    struct child lonely = orphan(daemon_ends, DAEMON), below = orphan(below_ends, BELOW);
    CHECK(places[LEADER].session == leading.pid && places[BEFORE].session == getsid(0), "sessions");
    CHECK(places[DAEMON].session == maker.pid && places[BELOW].session != shells.pid, "orphans");
    pid_t session = getsid(0), own_group = getpgid(0);
    ready_and_wait();
    // A clone has a session of its caller's where the parent had one from outside.
    if (getsid(0) != session)
        places[BEFORE].session = places[GROUP_LEADER].session = places[IN_GROUP].session =
            places[IN_DEAD_GROUP].session = getsid(0);
    if (getpgid(0) != own_group) places[BEFORE].group = getpgid(0);
    struct child all[] = {leading, group, joined, left, lonely, below, shells};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tell_and_reap(all[i]);
    REFUSED(waitpid(-1, NULL, WNOHANG), ECHILD);
    pass();
}
