// A listening Unix socket has a path, which only one process can have: a clone beside its parent
// gets another with --inherit-fd 5=listen:PATH.
#include "check.h"
#include <sys/socket.h>
#include <sys/un.h>

#define LISTENER 5

static struct sockaddr_un address(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    return to;
}

int main(void) {
    struct sockaddr_un own = address("listening");
    unlink("listening");
    int fd = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    CHECK(MUST(dup2(fd, LISTENER)) == LISTENER, "dup2: %s", strerror(errno));
    if (fd != LISTENER) close(fd);
    MUST(bind(LISTENER, (struct sockaddr *)&own, sizeof own));
    MUST(listen(LISTENER, 4));
    ready_and_wait();
    // The clone's listener may be bound elsewhere: ask it.
    struct sockaddr_un bound = {0};
    socklen_t bytes = sizeof bound;
    MUST(getsockname(LISTENER, (struct sockaddr *)&bound, &bytes));
    int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    MUST(connect(client, (struct sockaddr *)&bound, bytes));
    int served = MUST(accept(LISTENER, NULL, NULL));
    char text[6] = "";
    CHECK(write(client, "hello", 5) == 5 && read(served, text, 5) == 5 && !strcmp(text, "hello"),
          "connection: expected hello, saw %s", text);
    note("listening at %s", bound.sun_path);
    pass();
}
