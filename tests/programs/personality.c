// The personality is kept, and so is what hangs on it.
#include "check.h"
#include <sys/personality.h>

int main(void) {
    int wanted = PER_LINUX | ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC;
    MUST(personality(wanted));
    ready_and_wait();
    int seen = personality(0xffffffff);
    CHECK(seen == wanted, "personality: expected %#x, saw %#x", wanted, seen);
    uint8_t *code = anonymous(PAGE);
    code[0] = 0xc3; // ret: may be executed although only read and write were asked for
    ((void (*)(void))code)();
    pass();
}
