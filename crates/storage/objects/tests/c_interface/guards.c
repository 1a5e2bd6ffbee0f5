/* Payments by a guarded operation: of this process, and of one that is killed in the middle, which this one completes.
 * Ends with the line of what is wrong. */
#include <errno.h>
#include <farfork.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEMAND(is_true)                                                       \
    do {                                                                      \
        if (!(is_true)) {                                                     \
            fprintf(stderr, "line %d: %s\n", __LINE__, ff_error());           \
            return 1;                                                         \
        }                                                                     \
    } while (0)

struct payment {
    uint64_t *from, *to;
    uint64_t amount;
};

/* Stores one word, and dies before the other one, if the first word was 41. */
static int half(ff_guard *guard, const void *arguments, size_t bytes)
{
    const uint64_t *const *at = arguments;
    uint64_t victim = 0, one;
    if (bytes != 16 || ff_guard_lock(guard, 7) || ff_guard_load(guard, at[0], &one))
        return -1;
    if (!ff_guard_done(guard, &victim))
        ff_guard_record(guard, (uint64_t)getpid());
    else if (victim == (uint64_t)getpid())
        return -1;
    ff_guard_store(guard, (uint64_t *)at[0], one + 1);
    if (!victim && one == 41)
        kill(getpid(), SIGKILL);
    ff_guard_store(guard, (uint64_t *)at[1], one + 1);
    return ff_guard_lock(guard, 3) == -1 && errno == EINVAL ? 9 : 8;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    ff_region *region = ff_open(argv[1]);
    DEMAND(region);
    uint64_t *words = ff_alloc(region, 64);
    DEMAND(words);
    memset(words, 0, 64);
    const struct ff_guard_operation *pay = ff_guard_operations;
    int operation = ff_guard_register(region, pay->name, pay->version, pay->function);
    DEMAND(operation == 0 && ff_guard_register(region, "", 1, pay->function) == -1 && errno == EINVAL);
    words[0] = 100;
    struct payment payment = {&words[0], &words[1], 30};
    int result = -1;
    DEMAND(!ff_guard_call(region, operation, &payment, sizeof payment, &result) && result == 0);
    DEMAND(words[0] == 70 && words[1] == 30);
    payment.amount = 71;
    DEMAND(!ff_guard_call(region, operation, &payment, sizeof payment, &result) && result == 1);
    DEMAND(ff_guard_call(region, 5, &payment, sizeof payment, &result) == -1 && errno == EINVAL);
    DEMAND(ff_guard_call(region, operation, &payment, 513, &result) == -1 && errno == EINVAL);
    ff_mailbox *receipts = ff_mailbox_open(region, "receipts", 64);
    DEMAND(receipts);
    uint64_t *receipt = ff_recv(receipts, 0);
    DEMAND(receipt && *receipt == 30);
    ff_free(region, receipt);
    /* The child dies between both stores. */
    int both = ff_guard_register(region, "half", 1, half);
    uint64_t *at[2] = {&words[2], &words[3]};
    words[2] = 41;
    DEMAND(both == 1);
    pid_t child = fork();
    if (!child) {
        if (!ff_after_fork(region) && ff_client(region) == 2)
            ff_guard_call(region, both, at, sizeof at, 0);
        _exit(1);
    }
    int status = 0;
    DEMAND(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    DEMAND(words[2] == 42 && words[3] == 0);
    /* It meets the lock of the dead one, and completes its operation first. */
    DEMAND(!ff_guard_call(region, both, at, sizeof at, &result) && result == 9);
    DEMAND(words[2] == 43 && words[3] == 43);
    struct ff_check_result check;
    DEMAND(ff_check(region, &check) == 0 && check.owned == 1);
    ff_close(region);
    return 0;
}
