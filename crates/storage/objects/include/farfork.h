/* Objects in shared memory that survive the death of any client.
 *
 * A region is a file ("farfork region create PATH --size SIZE"). Each ff_open makes a client; one thread
 * at a time uses its handle, other threads open their own, and so do children after fork(). The region lies
 * at the same address in every process: pointers to objects may be stored in objects.
 *
 * A client that dies, at any instruction, leaves everything consistent: what it owned is free again, what it
 * has sent is in the mailbox, and what it has received was its own.
 *
 * Errors: NULL or -1, with errno; ff_error() has the words.
 */
#ifndef FARFORK_H
#define FARFORK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ff_region ff_region;
typedef struct ff_mailbox ff_mailbox;

/* An object, in every process. Never 0 for an object. */
typedef uint64_t ff_ref;

/* Opens a region. EPROTONOSUPPORT: another version. EBADMSG: damaged or truncated. EADDRINUSE: something
 * else is mapped at its address. EUSERS: all ids of clients are taken. */
ff_region *ff_open(const char *path);

/* Frees all objects of this client, and closes its mailboxes. NULL is allowed. */
void ff_close(ff_region *region);

/* Allocates an object of any size at a multiple of 16. Its bytes are not cleared. ENOMEM: the region is full, or
 * (above 32 KiB) has no free space of this length. */
void *ff_alloc(ff_region *region, size_t bytes);

/* Frees an object of this client. NULL is allowed. Sets errno to EINVAL, and does nothing else, if the object
 * is not the client's: freed or sent already, or not of this region. */
void ff_free(ff_region *region, void *object);

/* Bytes that an object of this client can hold. 0 with EINVAL if it is not the client's. */
size_t ff_usable_size(ff_region *region, const void *object);

/* The reference to an object of this client. 0 with EINVAL if it is not the client's. */
ff_ref ff_ref_of(ff_region *region, const void *object);

/* The object of a reference, of this client or not. NULL with EINVAL if the region has no such object. */
void *ff_deref(ff_region *region, ff_ref ref);

/* Opens a mailbox, which is made if there is none of that name (1 to 48 bytes). It has a power of two of
 * slots, at most 1024, the same in every call. The handle is valid until ff_close. */
ff_mailbox *ff_mailbox_open(ff_region *region, const char *name, size_t slots);

/* Sends an object of this client; returns 0. From then on it belongs to the receiver, and the sender must not
 * touch it. The first call makes the client the mailbox's sender until it closes the region or dies.
 * timeout_us: 0 polls (EAGAIN), -1 waits, else ETIMEDOUT after so many microseconds. EBUSY: another living
 * client is the sender. EINVAL: the object is not this client's. */
int ff_send(ff_mailbox *mailbox, void *object, int64_t timeout_us);

/* Receives an object, which belongs to this client from then on. Timeouts and errors as of ff_send. */
void *ff_recv(ff_mailbox *mailbox, int64_t timeout_us);

/* Counts of all objects. Of an intact region lost, double and foreign are 0. */
struct ff_check_result {
    uint64_t bytes;        /* for objects; the sum of those free, owned and in mailboxes */
    uint64_t bytes_free;
    uint64_t owned;        /* objects of living clients, and the bytes that they take */
    uint64_t bytes_owned;
    uint64_t in_mailboxes; /* objects named by one slot, and the bytes that they take */
    uint64_t bytes_in_mailboxes;
    uint64_t lost;         /* objects of mailboxes that no slot names; memory of which no client knows */
    uint64_t double_;      /* named by several slots, or free and named */
    uint64_t foreign;      /* of owners that are not clients; slots that name no object */
    uint64_t clients_recovered; /* dead clients recovered before counting */
};

/* Recovers dead clients and counts: 0 if nothing is wrong, 1 otherwise, -1 on errors. result may be NULL. */
int ff_check(ff_region *region, struct ff_check_result *result);

/* The last error of this thread in words. NULL without one. Valid until the next. */
const char *ff_error(void);

#ifdef __cplusplus
}
#endif

#endif
