// Ids, capabilities and securebits belong to threads: each keeps its own.
#include "check.h"
#include <linux/securebits.h>
#include <pthread.h>
#include <sys/prctl.h>

#define NET_RAW 13
#define NET_ADMIN 12
#define SYS_ADMIN 21

static pthread_barrier_t gate;

static void capset_raw(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    uint32_t header[2] = {0x20080522, 0};
    uint32_t data[6] = {effective,       permitted,       inheritable,
                        effective >> 32, permitted >> 32, inheritable >> 32};
    MUST(syscall(SYS_capset, header, data));
}

static void check_caps(const char *who, uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    uint32_t header[2] = {0x20080522, 0}, data[6];
    MUST(syscall(SYS_capget, header, data));
    uint64_t seen[3];
    for (int i = 0; i < 3; i++) seen[i] = data[i] | (uint64_t)data[i + 3] << 32;
    CHECK(seen[0] == effective && seen[1] == permitted && seen[2] == inheritable,
          "%s: expected capabilities %lx %lx %lx, saw %lx %lx %lx", who, effective, permitted,
          inheritable, seen[0], seen[1], seen[2]);
}

static uid_t own_uid(void) {
    return syscall(SYS_geteuid);
}

// Another user, without capabilities.
static void *servant(void *unused) {
    MUST(syscall(SYS_setresgid, 2001, 2001, 2001));
    MUST(syscall(SYS_setresuid, 2000, 2000, 2000));
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    CHECK(own_uid() == 2000 && syscall(SYS_getegid) == 2001, "servant: saw uid %d", own_uid());
    check_caps("servant", 0, 0, 0);
    REFUSED(syscall(SYS_setresuid, 0, 0, 0), EPERM);
    return unused;
}

// Another user that keeps two capabilities for whatever it executes.
static void *delegate(void *unused) {
    uint64_t two = 1UL << NET_RAW | 1UL << NET_ADMIN;
    MUST(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED));
    MUST(syscall(SYS_setresuid, 3000, 3000, 3000));
    capset_raw(two, two, two);
    MUST(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, NET_RAW, 0, 0));
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    CHECK(own_uid() == 3000, "delegate: saw uid %d", own_uid());
    check_caps("delegate", two, two, two);
    CHECK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, NET_RAW, 0, 0) == 1, "ambient: expected");
    CHECK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, NET_ADMIN, 0, 0) == 0, "ambient: one more");
    int bits = prctl(PR_GET_SECUREBITS);
    CHECK(bits == (SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED), "securebits: saw %#x", bits);
    return unused;
}

// Root with an inheritable capability that its bounding set has lost, and no right to have ambient ones.
static void *bounded(void *unused) {
    uint32_t header[2] = {0x20080522, 0}, data[6];
    MUST(syscall(SYS_capget, header, data));
    uint64_t held = data[0] | (uint64_t)data[3] << 32;
    capset_raw(held, held, 1UL << SYS_ADMIN);
    MUST(prctl(PR_CAPBSET_DROP, SYS_ADMIN));
    MUST(prctl(PR_SET_SECUREBITS, SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NOROOT | SECBIT_KEEP_CAPS));
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    check_caps("bounded", held, held, 1UL << SYS_ADMIN);
    CHECK(prctl(PR_CAPBSET_READ, SYS_ADMIN) == 0, "bounding set: expected CAP_SYS_ADMIN dropped");
    int bits = prctl(PR_GET_SECUREBITS);
    CHECK(bits == (SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NOROOT | SECBIT_KEEP_CAPS), "securebits: saw %#x", bits);
    return unused;
}

int main(void) {
    if (geteuid()) {
        ready_and_wait();
        note("not root: nothing to tell apart");
        pass();
    }
    void *(*lives[])(void *) = {servant, delegate, bounded};
    pthread_t threads[3];
    pthread_barrier_init(&gate, NULL, 4);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, lives[i], NULL);
    pthread_barrier_wait(&gate);
    ready_and_wait();
    CHECK(own_uid() == 0 && prctl(PR_GET_SECUREBITS) == 0, "main thread: expected root");
    CHECK(prctl(PR_CAPBSET_READ, SYS_ADMIN) == 1, "bounding set of the main thread: expected whole");
    pthread_barrier_wait(&gate);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    pass();
}
