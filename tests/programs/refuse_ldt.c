// A segment in the process's own table.
#include "check.h"
#include <asm/ldt.h>

int main(void) {
    struct user_desc entry = {.entry_number = 5, .limit = 0xfffff, .seg_32bit = 1, .limit_in_pages = 1, .useable = 1};
    if (syscall(SYS_modify_ldt, 1, &entry, sizeof entry) < 0) {
        note("UNAVAILABLE modify_ldt: %s", strerror(errno));
        ready_and_wait();
        pass();
    }
    ready_and_wait();
    char table[64];
    CHECK(syscall(SYS_modify_ldt, 0, table, sizeof table) > 0, "the entry has gone");
    pass();
}
