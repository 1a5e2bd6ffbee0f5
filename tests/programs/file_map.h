// A file of our own to map, with a known pattern.
#ifndef FARFORK_FILE_MAP_H
#define FARFORK_FILE_MAP_H

#include "check.h"
#include <sys/stat.h>

// The driver starts every program in a directory of its own and removes it afterwards.
static inline int file_with(const char *name, size_t bytes, unsigned seed) {
    int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    uint8_t page[PAGE];
    for (size_t at = 0; at < bytes; at += PAGE) {
        size_t now = bytes - at < PAGE ? bytes - at : PAGE;
        for (size_t i = 0; i < now; i++) page[i] = pattern(at + i, seed);
        CHECK(pwrite(fd, page, now, at) == (ssize_t)now, "pwrite: %s", strerror(errno));
    }
    return fd;
}

static inline uint8_t *map_file(int fd, size_t bytes, int prot, int flags, off_t from) {
    void *at = mmap(NULL, bytes, prot, flags, fd, from);
    CHECK(at != MAP_FAILED, "mmap of a file: %s", strerror(errno));
    return at;
}

#endif
