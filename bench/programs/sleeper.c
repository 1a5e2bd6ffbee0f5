// Measures the wake-up of a process alone: it sleeps on a socket and answers every message with the
// time at which it ran again.
//
// usage: sleeper FD MEGABYTES
//
// It has touched MEGABYTES of memory before. An answer is CLOCK_MONOTONIC in nanoseconds, in 8 bytes.
// The first one is sent without a message, when it begins to sleep.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int fd = atoi(argv[1]);
    size_t bytes = (size_t)atoll(argv[2]) << 20;
    char *memory = malloc(bytes + 1);
    if (memory == NULL)
        return 1;
    memset(memory, 1, bytes + 1);
    do {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
        if (send(fd, &ns, sizeof ns, MSG_NOSIGNAL) != sizeof ns)
            return 1;
    } while (recv(fd, memory, 1, 0) == 1);
    return 0;
}
