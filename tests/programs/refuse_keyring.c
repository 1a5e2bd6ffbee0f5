// A key in a keyring of the process, a thread or a session of its own.
#include "check.h"
#include <linux/keyctl.h>

int main(void) {
    const char *kind = getenv("KIND");
    int ring = KEY_SPEC_PROCESS_KEYRING;
    if (kind && !strcmp(kind, "thread")) ring = KEY_SPEC_THREAD_KEYRING;
    if (kind && !strcmp(kind, "session")) {
        ring = KEY_SPEC_SESSION_KEYRING;
        syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
    }
    if (syscall(SYS_add_key, "user", "farfork-test", "secret", 6, ring) < 0) {
        note("UNAVAILABLE add_key: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    ready_and_wait();
    char secret[8] = "";
    long key = MUST(syscall(SYS_keyctl, KEYCTL_SEARCH, ring, "user", "farfork-test", 0));
    CHECK(MUST(syscall(SYS_keyctl, KEYCTL_READ, key, secret, sizeof secret)) == 6, "the key has another size");
    CHECK(!memcmp(secret, "secret", 6), "expected the secret, saw %s", secret);
    pass();
}
