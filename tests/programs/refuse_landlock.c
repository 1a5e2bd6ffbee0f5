// Confined by Landlock: the kernel does not tell by which rules, so that a clone would be free.
#include "check.h"
#include <sys/prctl.h>

#define CREATE_RULESET 444
#define RESTRICT_SELF 446
#define MAKE_REG (1UL << 8)

int main(void) {
    uint64_t handled = MAKE_REG;
    int rules = (int)syscall(CREATE_RULESET, &handled, sizeof handled, 0);
    if (rules < 0 || geteuid()) {
        note("UNAVAILABLE Landlock, for root: %s", strerror(errno));
        pass();
    }
    MUST(syscall(RESTRICT_SELF, rules, 0));
    close(rules);
    ready_and_wait();
    REFUSED(open("new", O_CREAT | O_WRONLY, 0600), EACCES);
    pass();
}
