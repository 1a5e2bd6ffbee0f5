// The stack keeps its content and still grows by faults to several MiB.
#include "check.h"

__attribute__((noinline)) static unsigned deep(unsigned depth) {
    volatile uint8_t frame[4000];
    for (size_t at = 0; at < sizeof frame; at += 97) frame[at] = pattern(at, depth);
    unsigned below = depth ? deep(depth - 1) : 0;
    for (size_t at = 0; at < sizeof frame; at += 97)
        CHECK(frame[at] == pattern(at, depth), "frame %u: expected %#x at %zu, saw %#x", depth,
              pattern(at, depth), at, frame[at]);
    return below + 1;
}

__attribute__((noinline)) static void wait_at(unsigned depth) {
    uint8_t frame[2000];
    fill(frame, sizeof frame, depth);
    __asm__ volatile("" : : "r"(frame) : "memory");
    if (depth)
        wait_at(depth - 1);
    else
        ready_and_wait();
    CHECK_FILLED(frame, sizeof frame, depth);
}

int main(void) {
    uint8_t bottom[16 * PAGE];
    fill(bottom, sizeof bottom, 1);
    wait_at(50);
    CHECK(deep(1500) == 1501, "recursion: expected 1501 frames");
    CHECK_FILLED(bottom, sizeof bottom, 1);
    pid_t child = MUST(fork());
    if (!child) {
        CHECK(deep(1700) == 1701, "recursion in the child: expected 1701 frames");
        _exit(0);
    }
    reap(child);
    CHECK_FILLED(bottom, sizeof bottom, 1);
    pass();
}
