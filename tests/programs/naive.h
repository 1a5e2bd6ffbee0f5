// The restore that the memory traps are about, done by a program to itself: with FARFORK_NAIVE
// set, all its private anonymous memory becomes a private mapping of a file that holds the same
// bytes. A program written against one of these traps must not pass like that; this is how the
// suite knows that its programs are able to fail.
#ifndef FARFORK_NAIVE_H
#define FARFORK_NAIVE_H

struct region {
    unsigned long start, end;
    int prot;
};

static inline int parse_anonymous(const char *line, struct region *region) {
    char perms[5];
    unsigned long inode;
    char name[64] = "";
    int fields = sscanf(line, "%lx-%lx %4s %*x %*s %lu %63s", &region->start, &region->end, perms,
                        &inode, name);
    if (fields < 4 || inode || perms[3] != 'p' || perms[1] != 'w') return 0;
    if (name[0] && strcmp(name, "[heap]") && strncmp(name, "[anon:", 6)) return 0;
    region->prot = PROT_WRITE | (perms[0] == 'r' ? PROT_READ : 0) |
                   (perms[2] == 'x' ? PROT_EXEC : 0);
    return 1;
}

// Reads with one byte a call into a line on the stack: stdio would change what is being listed.
static inline int read_line(int fd, char *line, size_t room) {
    size_t at = 0;
    while (at + 1 < room && read(fd, line + at, 1) == 1)
        if (line[at++] == '\n') break;
    line[at] = 0;
    return at > 0;
}

static inline void become_file(struct region region, int fd, off_t at) {
    size_t bytes = region.end - region.start;
    for (size_t done = 0; done < bytes; done += PAGE) {
        const uint64_t *page = (const uint64_t *)(region.start + done);
        int any = 0;
        for (size_t word = 0; word < PAGE / 8 && !any; word++) any = page[word] != 0;
        if (any) MUST(pwrite(fd, page, PAGE, at + done));
    }
    MUST(mmap((void *)region.start, bytes, region.prot, MAP_PRIVATE | MAP_FIXED, fd, at));
}

static inline void pretend_naive_restore(void) {
    struct region regions[2048];
    size_t count = 0;
    char line[512];
    int maps = MUST(open("/proc/self/maps", O_RDONLY));
    while (count < 2048 && read_line(maps, line, sizeof line))
        if (parse_anonymous(line, &regions[count])) count++;
    close(maps);
    int fd = MUST(memfd_create("naive", 0));
    MUST(ftruncate(fd, 1L << 40));
    off_t at = 0;
    for (size_t i = 0; i < count; i++) {
        become_file(regions[i], fd, at);
        at += regions[i].end - regions[i].start;
    }
    close(fd);
}

#endif
