// A byte that was sent with MSG_OOB in a pair of sockets: a look at the stream does not show where it is.
#include "check.h"
#include <sys/socket.h>

int main(void) {
    int ends[2];
    char byte = 0, text[8] = "";
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    CHECK(send(ends[0], "abc", 3, 0) == 3, "send: %s", strerror(errno));
    if (send(ends[0], "X", 1, MSG_OOB) < 0) {
        note("UNAVAILABLE MSG_OOB: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    ready_and_wait();
    CHECK(recv(ends[1], &byte, 1, MSG_OOB) == 1 && byte == 'X', "urgent: expected X, saw %c", byte);
    CHECK(recv(ends[1], text, sizeof text, 0) == 3 && !strcmp(text, "abc"), "expected abc, saw %s", text);
    pass();
}
