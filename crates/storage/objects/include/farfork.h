/* Objects in shared memory that survive the death of any client.
 *
 * A region is a file ("farfork region create PATH --size SIZE"). Each ff_open makes a client; one thread
 * at a time uses its handle, other threads open their own. A child after fork() opens its own, or calls ff_after_fork. The
 * region lies at the same address in every process: pointers to objects may be stored in objects.
 *
 * A client that dies, at any instruction, leaves everything consistent: what it owned is free again, what it
 * has sent is in the mailbox, and what it has received was its own.
 *
 * Forks: a process makes a seed of itself, and clones of it start on any machine (ff_prepare).
 *
 * Errors: NULL or -1, with errno; ff_error() has the words. In a region of "farfork region create --checked", misuse is found
 * and goes to the standard error, too; FARFORK_CHECKED=abort,trace ends the process there. FARFORK_PROTECTED=1 lets only the
 * library write to the tables of regions, by a protection key; without one, ff_open fails with EOPNOTSUPP.
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
 * else is mapped at its address. EUSERS: all ids of clients are taken. EBUSY: its node-local metadata was removed, and clients use
 * it still; it is rebuilt after they have ended. EACCES: region or metadata of another user. ESTALE: the metadata was rebuilt meanwhile;
 * open it again. */
ff_region *ff_open(const char *path);

/* Frees all objects of this client, and closes its mailboxes. NULL is allowed. */
void ff_close(ff_region *region);

/* In a child after fork(), before any other call with the handle: makes it a client of its own. It owns nothing; what the
 * parent owns stays the parent's, at the same address. Mailbox handles and operations stay valid. Elsewhere it does nothing.
 * Returns 0, or -1 with the errors of ff_open. */
int ff_after_fork(ff_region *region);

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

/* Structures: objects that refer to each other.
 *
 * An object of ff_alloc_refs begins with references, ff_ref, which are read like any memory (0: none) and changed by
 * the calls below only. What can be reached from a root is a structure. The root is an ordinary object of a
 * client: it is sent, received and freed with all that hangs on it. ff_send_root shares the structure instead:
 * every client that receives the root holds it, and the last one to let go frees it. One client, the writer, may link and
 * unlink; all may change what else is in the objects. Objects that refer to each other in a circle are never freed. */

/* The id of this client, 1 to 126. */
int ff_client(ff_region *region);

/* Allocates an object of up to 32752 bytes whose first refs words are references, all 0. EINVAL: too large. */
void *ff_alloc_refs(ff_region *region, size_t bytes, unsigned refs);

/* Lets reference number field of from, which means nothing, mean to. from is the root or an object of its structure; to
 * is an object of this client, which becomes a part of the structure, or is one. Returns 0. EPERM: another client is the
 * writer. EINVAL: what was passed cannot be linked. */
int ff_link(ff_region *region, void *root, void *from, unsigned field, void *to);

/* Lets a reference mean nothing. What loses its last reference is freed with all that only it refers to: at once, or
 * as soon as no other client holds the structure. */
int ff_unlink(ff_region *region, void *root, void *from, unsigned field);

/* Both at once. to may be NULL. No client sees the reference in between. */
int ff_change(ff_region *region, void *root, void *from, unsigned field, void *to);

/* Sends the root of a structure that this client owns or holds, and goes on holding it. Timeouts and errors as of
 * ff_send. The first call makes this client the structure's writer. */
int ff_send_root(ff_mailbox *mailbox, void *root, int64_t timeout_us);

/* Lets go of a shared structure, once for the first ff_send_root and once for each receive. A client that dies lets go. */
int ff_release(ff_region *region, void *root);

/* By the writer: passes its role on to a client (its id), or to the first that takes it (0). By another client, with its
 * own id: takes the role, if it was passed on or its holder is dead. EPERM: another client has it. */
int ff_writer_transfer(ff_region *region, void *root, int client);

/* Frees what was unlinked, if no other client holds the structure: 1. Else 0. The calls above do so now and then. */
int ff_collect(ff_region *region, void *root);

/* Guarded operations: steps of a program that are all done although its process is killed in between.
 *
 * ff_guard_call writes the operation and its arguments down, then runs its function. If the process dies meanwhile, a process
 * that has the same function completes the operation: a client that has registered it, or "farfork region guard" with
 * a library of operations. It runs the function from its beginning, with the same arguments, in the name of the dead
 * client: each ff_guard_ call that was done then returns what it had returned, and is not done again. Rules for the function:
 *  1. It depends on its arguments and on what ff_guard_ calls return, and on nothing else.
 *  2. It calls no other function of this header. It changes shared memory by ff_guard_ calls only, and only what
 *     its locks protect. They are released when it returns.
 *  3. System calls may happen twice. ff_guard_record keeps their result, so that they do only if the process died between both.
 * An operation that runs longer than its grace period (10 s, "farfork region guard --grace"; without the time in which it waits
 * for locks) is ended with its process, and completed by another one. Begun four times, it is abandoned, as it was left. */

typedef struct ff_guard ff_guard;
typedef int (*ff_guard_function)(ff_guard *guard, const void *arguments, size_t bytes);

/* Registers an operation by its name (1 to 48 bytes) and the version of its function; returns its number for
 * ff_guard_call. The function stays in memory as long as the process lives. */
int ff_guard_register(ff_region *region, const char *name, unsigned version, ff_guard_function function);

/* Runs an operation, with at most 512 bytes of arguments, which lie where the function may read words. Returns 0, and
 * what the function returned in *result, unless that is NULL. -1: it has not begun. */
int ff_guard_call(ff_region *region, int operation, const void *arguments, size_t bytes, int *result);

/* What a library for "farfork region guard" exports. The last entry has no name. */
struct ff_guard_operation {
    const char *name;
    unsigned version;
    ff_guard_function function;
};
extern const struct ff_guard_operation ff_guard_operations[];

/* What a function is given: it calls farfork by this table, so that a library needs no libfarfork. */
struct ff_guard_calls {
    uint64_t version;
    int (*done)(ff_guard *, uint64_t *);
    int (*record)(ff_guard *, uint64_t);
    int (*lock)(ff_guard *, unsigned);
    int (*load)(ff_guard *, const uint64_t *, uint64_t *);
    int (*store)(ff_guard *, uint64_t *, uint64_t);
    void *(*alloc)(ff_guard *, size_t);
    void *(*alloc_refs)(ff_guard *, size_t, unsigned);
    int (*free)(ff_guard *, void *);
    int (*change)(ff_guard *, void *, void *, unsigned, void *);
    int (*send)(ff_guard *, const char *, size_t, void *);
};
struct ff_guard {
    const struct ff_guard_calls *calls;
};

/* 1 and its value if the next step was recorded in an earlier run. Else 0: do it, and record it. */
static inline int ff_guard_done(ff_guard *guard, uint64_t *value)
{
    return guard->calls->done(guard, value);
}

/* Records a step with its value. An operation has at most 376 steps: each record, load, alloc and change is one, send is two. */
static inline int ff_guard_record(ff_guard *guard, uint64_t value)
{
    return guard->calls->record(guard, value);
}

/* Takes lock 0 to 63 of the region until the operation is over, and waits for it. Lower numbers first: EINVAL. */
static inline int ff_guard_lock(ff_guard *guard, unsigned lock)
{
    return guard->calls->lock(guard, lock);
}

/* Loads a word of an object. */
static inline int ff_guard_load(ff_guard *guard, const uint64_t *where, uint64_t *value)
{
    return guard->calls->load(guard, where, value);
}

/* Stores a word of an object. */
static inline int ff_guard_store(ff_guard *guard, uint64_t *where, uint64_t value)
{
    return guard->calls->store(guard, where, value);
}

/* Allocates an object of this client. Unless it is sent or linked, it dies with the client. */
static inline void *ff_guard_alloc(ff_guard *guard, size_t bytes)
{
    return guard->calls->alloc(guard, bytes);
}

/* The same with references. */
static inline void *ff_guard_alloc_refs(ff_guard *guard, size_t bytes, unsigned refs)
{
    return guard->calls->alloc_refs(guard, bytes, refs);
}

/* Frees an object of this client when the operation is over. At most 64. */
static inline int ff_guard_free(ff_guard *guard, void *object)
{
    return guard->calls->free(guard, object);
}

/* As ff_change. */
static inline int ff_guard_change(ff_guard *guard, void *root, void *from, unsigned field, void *to)
{
    return guard->calls->change(guard, root, from, field, to);
}

/* Sends an object once, without waiting: 1, or 0 if the mailbox was full. */
static inline int ff_guard_send(ff_guard *guard, const char *mailbox, size_t slots, void *object)
{
    return guard->calls->send(guard, mailbox, slots, object);
}

/* Counts of all objects. Of an intact region lost, double and foreign are 0. */
struct ff_check_result {
    uint64_t bytes;        /* for objects; the sum of those free, owned, in mailboxes, linked */
    uint64_t bytes_free;
    uint64_t owned;        /* objects of living clients, and the bytes that they take */
    uint64_t bytes_owned;
    uint64_t in_mailboxes; /* objects named by one slot, and the bytes that they take */
    uint64_t bytes_in_mailboxes;
    uint64_t linked;       /* objects of structures, roots apart, and records of shared ones */
    uint64_t bytes_linked;
    uint64_t lost;         /* objects that no slot names, or no reference means; memory of which no client knows */
    uint64_t double_;      /* named by several slots, or free and named; objects with a wrong count */
    uint64_t foreign;      /* of owners that are not clients; slots that name no object */
    uint64_t clients_recovered; /* dead clients recovered before counting */
};

/* Recovers dead clients and counts: 0 if nothing is wrong, 1 otherwise, -1 on errors. result may be NULL. */
int ff_check(ff_region *region, struct ff_check_result *result);

/* Forks of this process (MITOSIS's fork_prepare, fork_resume, fork_reclaim). The command "farfork" does the work:
 * it is looked for in PATH, or is $FARFORK_BIN. Needs root. Do not call them in two threads at once. */

/* Prepares this process: from now on clones of it start, on any machine, as it is at this moment. Returns 0 in the
 * process, with id and key of the seed; returns 1 in each clone, which gets neither; -1 on errors. The key is
 * a secret: with it, all memory of the process can be read. The seed ends after ten minutes, or by
 * ff_reclaim. EPERM: what the process has keeps it from being prepared. */
int ff_prepare(uint64_t *id, uint64_t *key);

/* Where a seed of this process is served, as text ("10.0.0.1:7070"): 0. ERANGE: bytes are too few; 64 suffice. */
int ff_seed_address(uint64_t id, char *address, size_t bytes);

/* Starts a clone on this machine; returns its pid, which is not a child. Its standard input is empty, and what it
 * prints is dropped. Without an address (NULL), the seed is one of this process. */
int ff_resume(const char *address, uint64_t id, uint64_t key);

/* Ends a seed of this process: 0. Clones that may still fetch pages have ten seconds to do so. ENOENT: this
 * process has no such seed; a clone does not have those of its parent. */
int ff_reclaim(uint64_t id);

/* The last error of this thread in words. NULL without one. Valid until the next. */
const char *ff_error(void);

#ifdef __cplusplus
}
#endif

#endif
