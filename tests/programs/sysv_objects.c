// Semaphores and message queues of System V, and a segment that nobody has attached: a clone has its
// own, under the ids and keys that the parent knows.
#include "sysv.h"
#include <sys/msg.h>
#include <sys/sem.h>

#define LONG_BYTES 5000

struct text {
    long type;
    char bytes[LONG_BYTES];
};

static key_t key;
static int set, fresh_set, queue, loose;

static int semaphore(int id, int command, int number) {
    return MUST(semctl(id, number, command));
}

static void change(int number, int by) {
    struct sembuf one = {.sem_num = (unsigned short)number, .sem_op = (short)by, .sem_flg = IPC_NOWAIT};
    MUST(semop(set, &one, 1));
}

static void check_set(void) {
    struct semid_ds told;
    MUST(semctl(set, 0, IPC_STAT, &told));
    CHECK(told.sem_nsems == 300 && told.sem_perm.__key == key, "set: saw %lu, %#x", told.sem_nsems, told.sem_perm.__key);
    CHECK(told.sem_perm.cuid == 5 && told.sem_perm.uid == 7 && (told.sem_perm.mode & 0777) == 0640,
          "set: saw creator %u, owner %u, mode %o", told.sem_perm.cuid, told.sem_perm.uid, told.sem_perm.mode & 0777);
    CHECK(told.sem_otime != 0, "expected a set that was used");
    for (int number = 0; number < 300; number++) {
        int value = semaphore(set, GETVAL, number);
        CHECK(value == number % 7 * 1000, "semaphore %d: saw %d", number, value);
    }
    CHECK(MUST(semget(key, 0, 0)) == set, "the key leads to another set");
    MUST(semctl(fresh_set, 0, IPC_STAT, &told));
    CHECK(told.sem_otime == 0, "expected a set that was never used");
    CHECK(semaphore(fresh_set, GETVAL, 0) == 32767, "saw %d", semaphore(fresh_set, GETVAL, 0));
    change(299, -semaphore(set, GETVAL, 299) + 1);
    CHECK(semaphore(set, GETVAL, 299) == 1, "saw %d", semaphore(set, GETVAL, 299));
    change(299, -1);
    struct sembuf down = {.sem_num = 299, .sem_op = -1, .sem_flg = IPC_NOWAIT};
    REFUSED(semop(set, &down, 1), EAGAIN);
}

static void expect_message(long type, long asked, size_t bytes, unsigned seed) {
    struct text text = {0};
    ssize_t got = MUST(msgrcv(queue, &text, sizeof text.bytes, asked, IPC_NOWAIT));
    CHECK(got == (ssize_t)bytes && text.type == type, "message: expected type %ld, %zu bytes, saw %ld, %zd", type,
          bytes, text.type, got);
    CHECK_FILLED(text.bytes, bytes, seed);
}

static void send_message(long type, size_t bytes, unsigned seed) {
    struct text text = {.type = type};
    fill(text.bytes, bytes, seed);
    MUST(msgsnd(queue, &text, bytes, IPC_NOWAIT));
}

static void check_queue(void) {
    struct msqid_ds told;
    MUST(msgctl(queue, IPC_STAT, &told));
    CHECK(told.msg_qnum == 4 && told.msg_qbytes == 6000, "queue: saw %lu, %lu", told.msg_qnum, told.msg_qbytes);
    CHECK((told.msg_perm.mode & 0777) == 0600 && told.msg_perm.__key == key, "queue: saw %o, %#x",
          told.msg_perm.mode & 0777, told.msg_perm.__key);
    expect_message(9, 9, 3, 3);
    expect_message(5, 0, LONG_BYTES, 1);
    expect_message(1L << 40, 0, 0, 2);
    send_message(4, 10, 5);
    expect_message(5, 0, 1900, 4);
    expect_message(4, 0, 10, 5);
    struct text none;
    REFUSED(msgrcv(queue, &none, sizeof none.bytes, 0, IPC_NOWAIT), ENOMSG);
}

static void make_set(void) {
    MUST(setegid(6));
    MUST(seteuid(5));
    set = MUST(semget(key, 300, IPC_CREAT | IPC_EXCL | 0600));
    MUST(seteuid(0));
    MUST(setegid(0));
    unsigned short values[300];
    for (int number = 0; number < 300; number++) values[number] = (unsigned short)(number % 7 * 1000);
    MUST(semctl(set, 0, SETALL, values));
    change(6, 1);
    change(6, -1);
    struct semid_ds told;
    MUST(semctl(set, 0, IPC_STAT, &told));
    told.sem_perm.uid = 7, told.sem_perm.mode = 0640;
    MUST(semctl(set, 0, IPC_SET, &told));
    fresh_set = MUST(semget(IPC_PRIVATE, 2, 0600));
    MUST(semctl(fresh_set, 0, SETVAL, 32767));
}

static void make_queue(void) {
    queue = MUST(msgget(key, IPC_CREAT | IPC_EXCL | 0600));
    send_message(5, LONG_BYTES, 1);
    send_message(1L << 40, 0, 2);
    send_message(9, 3, 3);
    send_message(5, 1900, 4);
    struct msqid_ds told;
    MUST(msgctl(queue, IPC_STAT, &told));
    told.msg_qbytes = 6000; // less than what waits
    MUST(msgctl(queue, IPC_SET, &told));
}

int main(void) {
    remove_at_the_end();
    key = 0x6f000000 | getpid() << 4;
    make_set();
    make_queue();
    loose = make_segment(IPC_PRIVATE, 3 * PAGE - 9, 0600);
    uint8_t *at = attach(loose, NULL, 0);
    fill(at, 3 * PAGE - 9, 8);
    MUST(shmdt(at));
    ready_and_wait();
    check_set();
    check_queue();
    expect_attached(loose, 0);
    CHECK_FILLED(attach(loose, NULL, SHM_RDONLY), 3 * PAGE - 9, 8);
    MUST(shmctl(loose, IPC_RMID, NULL));
    MUST(semctl(set, 0, IPC_RMID));
    MUST(semctl(fresh_set, 0, IPC_RMID));
    MUST(msgctl(queue, IPC_RMID, NULL));
    pass();
}
