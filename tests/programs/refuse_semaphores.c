// Semaphores of System V with changes that are undone at the end of the process; with SHARED instead,
// such as somebody else uses, too.
#include "sysv.h"

int main(void) {
    remove_at_the_end();
    int set = MUST(semget(IPC_PRIVATE, 2, 0600)), ends[2], is_shared = getenv("SHARED") != NULL;
    struct sembuf up = {.sem_num = 0, .sem_op = 1, .sem_flg = is_shared ? 0 : SEM_UNDO};
    MUST(semop(set, &up, 1));
    MUST(pipe2(ends, O_CLOEXEC));
    if (is_shared) {
        pid_t child = MUST(fork());
        if (!child && MUST(fork())) _exit(0);
        if (!child) {
            // Not of the family any more; ends with the first process.
            close(ends[1]);
            up.sem_num = 1;
            MUST(semop(set, &up, 1));
            close(0), close(1), close(2);
            char byte;
            _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
        }
        reap(child);
        while (MUST(semctl(set, 1, GETVAL)) == 0) usleep(1000);
    }
    close(ends[0]);
    ready_and_wait();
    CHECK(MUST(semctl(set, 0, GETVAL)) == 1, "saw %d", semctl(set, 0, GETVAL));
    MUST(semctl(set, 0, IPC_RMID));
    pass();
}
