// Segments of System V as the kernel tells of them.
#ifndef FARFORK_SYSV_H
#define FARFORK_SYSV_H

#include "check.h"
#include <sys/ipc.h>
#include <sys/shm.h>

static inline int make_segment(key_t key, size_t bytes, int mode) {
    return MUST(shmget(key, bytes, IPC_CREAT | IPC_EXCL | mode));
}

static inline uint8_t *attach(int id, void *where, int flags) {
    uint8_t *at = shmat(id, where, flags);
    CHECK(at != (void *)-1, "shmat of %d: %s", id, strerror(errno));
    return at;
}

// What `shmctl` says, by id; a segment that is gone has no bytes.
static inline struct shmid_ds described(int id) {
    struct shmid_ds told = {0};
    if (shmctl(id, IPC_STAT, &told)) CHECK(errno == EINVAL || errno == EIDRM, "IPC_STAT: %s", strerror(errno));
    return told;
}

static inline void expect_attached(int id, unsigned long count) {
    struct shmid_ds told = described(id);
    CHECK(told.shm_segsz > 0, "segment %d is gone", id);
    CHECK(told.shm_nattch == count, "segment %d: expected %lu attached, saw %lu", id, count, told.shm_nattch);
}

#endif
