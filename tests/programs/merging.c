// Merging of equal pages and transparent huge pages: for the process and for ranges.
#include "check.h"
#include <sys/prctl.h>

#define SET_MEMORY_MERGE 67
#define GET_MEMORY_MERGE 68
#define EXCEPT_ADVISED 2

// Whether smaps prints `flag` for the mapping that begins at `at`.
static int has_flag(uint8_t *at, const char *flag) {
    char line[512], start[32];
    int is_ours = 0, found = -1;
    snprintf(start, sizeof start, "%lx-", (long)at);
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) {
        if (strchr(line, '-') && !strstr(line, "kB")) is_ours = !strncmp(line, start, strlen(start)) || (is_ours && strstr(line, "VmFlags"));
        if (is_ours && !strncmp(line, "VmFlags:", 8)) found = strstr(line, flag) != NULL;
    }
    fclose(maps);
    return found;
}

int main(void) {
    // Linux 6.18 knows more than on and off.
    int disable = prctl(PR_SET_THP_DISABLE, 1, EXCEPT_ADVISED, 0, 0) ? 1 : 3;
    if (disable == 1) MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    int merges = !prctl(SET_MEMORY_MERGE, 1, 0, 0, 0);
    uint8_t *ranges[3];
    int advice[3] = {MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_MERGEABLE};
    const char *flags[3] = {" hg", " nh", " mg"};
    for (int i = 0; i < 3; i++) {
        uint8_t *all = anonymous(6 * PAGE);
        ranges[i] = all + PAGE;
        MUST(mprotect(all, PAGE, PROT_NONE));
        MUST(mprotect(all + 5 * PAGE, PAGE, PROT_NONE));
        fill(ranges[i], 4 * PAGE, i);
        if (raw_madvise(ranges[i], 4 * PAGE, advice[i])) flags[i] = NULL;
    }
    ready_and_wait();
    CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == disable, "THP: expected %d, saw %d", disable,
          prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    if (merges) CHECK(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0) == 1, "merging: expected");
    for (int i = 0; i < 3; i++) {
        CHECK_FILLED(ranges[i], 4 * PAGE, i);
        if (flags[i]) CHECK(has_flag(ranges[i], flags[i]) == 1, "flag%s: expected", flags[i]);
    }
    pass();
}
