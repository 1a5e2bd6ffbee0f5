// Objects of System V: segments as the kernel tells of them, and who takes them away.
#ifndef FARFORK_SYSV_H
#define FARFORK_SYSV_H

#include "check.h"
#include <poll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
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

static inline int is_of_user(int set, int count, pid_t user) {
    for (int at = 0; at < count; at++)
        if (semctl(set, at, GETPID) == user) return 1;
    return 0;
}

// After a process that had attached it has ended; none are attached to a segment that is gone. Whoever reads in
// /proc what memory a process uses, as the node's agent does, holds that memory for a moment beyond its end.
static inline void await_attached(int id, unsigned long count) {
    for (int left = 5000; described(id).shm_nattch != count && left > 0; left--) usleep(1000);
    CHECK(described(id).shm_nattch == count, "segment %d: expected %lu attached in the end, saw %lu", id, count,
          described(id).shm_nattch);
}

static inline void remove_objects_of(pid_t user) {
    char info[512] __attribute__((aligned(8))); // more than any of the kernel's
    int last = semctl(0, 0, SEM_INFO, info);
    for (int at = 0; at <= last; at++) {
        struct semid_ds told;
        int id = semctl(at, 0, SEM_STAT, &told);
        if (id >= 0 && is_of_user(id, told.sem_nsems, user)) semctl(id, 0, IPC_RMID);
    }
    last = msgctl(0, MSG_INFO, (struct msqid_ds *)info);
    for (int at = 0; at <= last; at++) {
        struct msqid_ds told;
        int id = msgctl(at, MSG_STAT, &told);
        if (id >= 0 && (told.msg_lspid == user || told.msg_lrpid == user)) msgctl(id, IPC_RMID, NULL);
    }
    last = shmctl(0, SHM_INFO, (struct shmid_ds *)info);
    for (int at = 0; at <= last; at++) {
        struct shmid_ds told;
        int id = shmctl(at, SHM_STAT, &told);
        if (id >= 0 && told.shm_cpid == user) shmctl(id, IPC_RMID, NULL);
    }
}

// Has the objects go when this process, which may be killed, has gone: they would be taken for those
// of the next one that has its number. To be called before there are any. Pid 1 takes everybody along.
static inline void remove_at_the_end(void) {
    pid_t user = getpid(), child = user == 1 ? 1 : MUST(fork());
    if (child) {
        if (child != 1) reap(child);
        return;
    }
    int handle = MUST(syscall(SYS_pidfd_open, user, 0));
    if (fork()) _exit(0);
    setsid();
    for (int fd = 0; fd < handle; fd++) close(fd);
    struct pollfd end = {.fd = handle, .events = POLLIN};
    while (poll(&end, 1, -1) < 0) continue;
    remove_objects_of(user);
    _exit(0);
}

#endif
