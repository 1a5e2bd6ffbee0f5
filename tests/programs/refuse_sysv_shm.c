// A System V segment is known by its id in this kernel.
#include "check.h"
#include <sys/ipc.h>
#include <sys/shm.h>

int main(void) {
    int id = MUST(shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600));
    uint8_t *at = shmat(id, NULL, 0);
    CHECK(at != (void *)-1, "shmat: %s", strerror(errno));
    MUST(shmctl(id, IPC_RMID, NULL));
    fill(at, PAGE, 1);
    ready_and_wait();
    CHECK_FILLED(at, PAGE, 1);
    pass();
}
