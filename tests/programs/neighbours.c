// A clone reaches no image but its own: "owner" keeps a secret in megabytes of its memory, "attacker" looks for
// it there, and in whatever else it can reach. The arguments: who, the secret, masked, and the directory of the
// pool's images. "betrayed" is an attacker that has the secret: what looks for it has to find it.
#include "check.h"
#include "neighbours.h"

#define MEGABYTES 4
#define PIECES 4

// Clear only in the memory of who keeps it: in none of what is left on the stack.
static void keep_secret(const char *masked) {
    uint8_t *kept = anonymous(MEGABYTES * MIB);
    CHECK(nb_unmask(masked), "expected a secret, saw %s", masked);
    for (size_t at = 0; at < MEGABYTES * MIB; at++) kept[at] = nb_masked[at % NB_SECRET] ^ NB_MASK;
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
    if (strcmp(argv[1], "attacker")) keep_secret(argv[2]);
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
