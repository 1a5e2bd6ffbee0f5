/* A guarded operation: a payment between two accounts, with a receipt that is sent once. As a library for
 * "farfork region guard", which completes it for clients that die in the middle:
 *
 *   cc -shared -fPIC -I include examples/payment.c -o payment.so
 */
#include <farfork.h>

struct payment {
    uint64_t *from, *to; /* Words of objects: at the same address in every client. */
    uint64_t amount;
};

static int pay(ff_guard *guard, const void *arguments, size_t bytes)
{
    const struct payment *payment = arguments;
    uint64_t from, to;
    if (bytes != sizeof *payment || ff_guard_lock(guard, 0))
        return -1;
    if (ff_guard_load(guard, payment->from, &from) || ff_guard_load(guard, payment->to, &to))
        return -1;
    if (from < payment->amount)
        return 1;
    uint64_t *receipt = ff_guard_alloc(guard, sizeof *receipt);
    if (!receipt || ff_guard_store(guard, receipt, payment->amount))
        return -1;
    /* With a receipt, nothing fails any more. */
    if (ff_guard_send(guard, "receipts", 64, receipt) != 1)
        return 2;
    ff_guard_store(guard, payment->from, from - payment->amount);
    ff_guard_store(guard, payment->to, to + payment->amount);
    return 0;
}

const struct ff_guard_operation ff_guard_operations[] = {{"pay", 1, pay}, {0, 0, 0}};
