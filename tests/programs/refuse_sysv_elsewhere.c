// A segment of System V that another process has attached as well: a clone's would be its own.
#include "sysv.h"
#include <sys/prctl.h>

int main(void) {
    int id = make_segment(IPC_PRIVATE, PAGE, 0600), ends[2];
    uint8_t *at = attach(id, NULL, 0);
    fill(at, PAGE, 1);
    MUST(pipe2(ends, O_CLOEXEC));
    pid_t child = MUST(fork());
    if (!child) {
        if (!MUST(fork())) {
            // Not of the family any more; ends with the first process.
            close(ends[1]);
            char byte;
            at[0] = 99;
            close(0), close(1), close(2);
            _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
        }
        _exit(0);
    }
    reap(child);
    while (at[0] != 99) usleep(1000);
    close(ends[0]);
    MUST(shmctl(id, IPC_RMID, NULL));
    ready_and_wait();
    expect_attached(id, 2);
    pass();
}
