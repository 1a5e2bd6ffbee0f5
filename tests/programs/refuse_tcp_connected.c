// A TCP connection has a peer that would have to be told.
#include "tcp.h"

int main(void) {
    struct sockaddr_in bound;
    int listener = tcp_listener(&bound);
    int client = tcp_connect(&bound), server = MUST(accept(listener, NULL, NULL));
    close(listener);
    ready_and_wait();
    char byte = 0;
    CHECK(write(client, "x", 1) == 1 && read(server, &byte, 1) == 1 && byte == 'x', "connection: expected x");
    pass();
}
