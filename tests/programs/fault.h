// Asks whether an access faults, without dying of it.
#ifndef FARFORK_FAULT_H
#define FARFORK_FAULT_H

#include "check.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf fault_escape;

static void fault_caught(int number) { siglongjmp(fault_escape, number); }

static inline void catch_faults(void) {
    struct sigaction action = {.sa_handler = fault_caught};
    MUST(sigaction(SIGSEGV, &action, NULL));
    MUST(sigaction(SIGBUS, &action, NULL));
}

// 0, SIGSEGV or SIGBUS.
static inline int fault_of_read(const volatile void *at) {
    int number = sigsetjmp(fault_escape, 1);
    if (!number) (void)*(const volatile uint8_t *)at;
    return number;
}

static inline int fault_of_write(volatile void *at) {
    int number = sigsetjmp(fault_escape, 1);
    if (!number) *(volatile uint8_t *)at = *(volatile uint8_t *)at;
    return number;
}

static inline int fault_of_call(void *at) {
    int number = sigsetjmp(fault_escape, 1);
    if (!number) ((void (*)(void))at)();
    return number;
}

#endif
