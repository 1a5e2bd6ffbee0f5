// A listening TCP socket belongs to this machine's network.
#include "tcp.h"

int main(void) {
    struct sockaddr_in bound;
    int listener = tcp_listener(&bound);
    ready_and_wait();
    close(tcp_connect(&bound));
    close(MUST(accept(listener, NULL, NULL)));
    pass();
}
