// A clone reaches no image but its own: "owner" keeps a secret in megabytes of its memory, "attacker" looks for
// it there, and in whatever else it can reach. The arguments: who, the secret, masked, and the directory of the
// pool's images. "betrayed" is an attacker that has the secret: what looks for it has to find it. "parent" has a child
// that keeps the secret as another user, "relative" as the same one: a tree, which lies in one image.
#include "check.h"
#include "neighbours.h"
#include <grp.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define MEGABYTES 4
#define PIECES 4

// Clear only in the memory of who keeps it: in none of what is left on the stack.
static void keep_secret(const char *masked) {
    uint8_t *kept = anonymous(MEGABYTES * MIB);
    CHECK(nb_unmask(masked), "expected a secret, saw %s", masked);
    for (size_t at = 0; at < MEGABYTES * MIB; at++) kept[at] = nb_masked[at % NB_SECRET] ^ NB_MASK;
}

// What is in a pipe lies in the plan of the clone.
static void send_to_itself(void) {
    int ends[2];
    char bytes[NB_SECRET];
    MUST(pipe(ends));
    for (int i = 0; i < NB_SECRET; i++) bytes[i] = nb_masked[i] ^ NB_MASK;
    CHECK(write(ends[1], bytes, sizeof bytes) == sizeof bytes, "write: %s", strerror(errno));
    explicit_bzero(bytes, sizeof bytes);
}

// The kernel takes it from who changes its user: memory that other processes of the user may read.
static void become(unsigned id) {
    MUST(setgroups(0, NULL));
    MUST(setresgid(id, id, id));
    MUST(setresuid(id, id, id));
    MUST(prctl(PR_SET_DUMPABLE, 1));
}

static void have_child(unsigned id, const char *masked) {
    int ends[2];
    char byte;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    if (MUST(fork()) == 0) {
        become(id);
        close(ends[0]);
        keep_secret(masked);
        send_to_itself();
        CHECK(write(ends[1], "x", 1) == 1, "write to the parent: %s", strerror(errno));
        // Until the parent, which may not signal another user's process, has ended.
        while (read(ends[1], &byte, 1) > 0) continue;
        _exit(0);
    }
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 1, "the child did not come to its place");
}

static void attack(const char *masked, const char *images) {
    static char report[1 << 16];
    neighbours_attack(images, masked, NULL, report, sizeof report);
    for (char *line = strtok(report, "\n"); line; line = strtok(NULL, "\n"))
        note(strncmp(line, "tried ", 6) ? "REACHED %s" : "ATTACK %s", line);
}

// After the attack the same process goes on, with a child: the driver looks at both from outside.
static void be_looked_at(void) {
    char byte;
    pid_t child = MUST(fork());
    if (child == 0) {
        pause();
        _exit(0);
    }
    note("LOOK");
    CHECK(read(0, &byte, 1) == 1, "read of one byte: %s", strerror(errno));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 4, "expected three arguments, saw %d", argc - 1);
    int is_owner = !strcmp(argv[1], "owner");
    if (is_owner || !strcmp(argv[1], "betrayed")) keep_secret(argv[2]);
    int is_parent = !strcmp(argv[1], "parent");
    if (is_parent || !strcmp(argv[1], "relative")) {
        have_child(is_parent ? 200002 : 200001, argv[2]);
        become(200001);
    }
    // Mappings of their own, which the attacker can do without.
    uint8_t *pieces = anonymous(2 * PIECES * MIB);
    for (int i = 0; i < PIECES; i++) {
        fill(pieces + 2 * i * MIB, MIB, i);
        MUST(mprotect(pieces + (2 * i + 1) * MIB, MIB, PROT_NONE));
    }
    ready_and_wait();
    if (is_owner) pass();
    attack(argv[2], argv[3]);
    for (int i = 0; i < PIECES; i++) CHECK_FILLED(pieces + 2 * i * MIB, MIB, i);
    be_looked_at();
    pass();
}
