// What /proc tells about oneself: exe, cmdline, environ, comm, auxv, stat's addresses.
#include "check.h"
#include <elf.h>
#include <sys/auxv.h>

#define ROOM 16384

static const char *const files[] = {"/proc/self/cmdline", "/proc/self/environ", "/proc/self/comm",
                                    "/proc/self/auxv"};
static char before[4][ROOM], after[4][ROOM];

static size_t slurp(const char *path, char *to) {
    int fd = MUST(open(path, O_RDONLY));
    size_t at = 0;
    ssize_t got;
    while ((got = read(fd, to + at, ROOM - at)) > 0) at += got;
    close(fd);
    return at;
}

static void exe(char *to) {
    ssize_t bytes = MUST(readlink("/proc/self/exe", to, ROOM - 1));
    to[bytes] = 0;
}

// start_code end_code start_stack, start_data end_data start_brk arg_start arg_end env_start env_end
static void addresses(unsigned long to[10]) {
    static char text[ROOM];
    text[slurp("/proc/self/stat", text)] = 0;
    char *at = strrchr(text, ')') + 2;
    for (int field = 3, next = 0; field <= 51; field++) {
        char *end = strchrnul(at, ' ');
        if ((field >= 26 && field <= 28) || (field >= 45 && field <= 51)) to[next++] = strtoul(at, NULL, 10);
        at = *end ? end + 1 : end;
    }
}

int main(void) {
    static char exe_before[ROOM], exe_after[ROOM];
    size_t sizes[4];
    unsigned long was[10] = {0}, is[10] = {0};
    for (int i = 0; i < 4; i++) sizes[i] = slurp(files[i], before[i]);
    exe(exe_before);
    addresses(was);
    ready_and_wait();
    for (int i = 0; i < 4; i++) {
        size_t size = slurp(files[i], after[i]);
        CHECK(size == sizes[i], "%s: expected %zu bytes, saw %zu", files[i], sizes[i], size);
        CHECK(!memcmp(before[i], after[i], size), "%s: expected the same, saw a difference", files[i]);
    }
    exe(exe_after);
    CHECK(!strcmp(exe_before, exe_after), "exe: expected %s, saw %s", exe_before, exe_after);
    addresses(is);
    for (int i = 0; i < 10; i++)
        CHECK(was[i] == is[i], "stat address %d: expected %#lx, saw %#lx", i, was[i], is[i]);
    CHECK(getauxval(AT_SYSINFO_EHDR), "auxv: expected a vDSO");
    CHECK(!memcmp((void *)getauxval(AT_SYSINFO_EHDR), ELFMAG, SELFMAG), "vDSO: expected an ELF file");
    pass();
}
