// Installing seccomp filters made of a few rules.
#ifndef FARFORK_FILTERS_H
#define FARFORK_FILTERS_H

#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

struct rule {
    int call;
    unsigned verdict;
};

// By prctl, or by seccomp with `flags`; what the call returns.
static inline long install(const struct rule *rules, int count, int by_prctl, unsigned flags) {
    struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    int at = 1;
    for (int i = 0; i < count; i++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rules[i].call, 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, rules[i].verdict);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {at, code};
    if (by_prctl) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

#define ERRNO(number) (SECCOMP_RET_ERRNO | (number))

#endif
