// Eight threads hold known values in every general and vector register: half spin in user mode,
// half wait in a raw futex call.
#include "check.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>

#define THREADS 8

struct registers {
    uint64_t general[16]; // rax rbx rcx rdx rsi rdi rbp r8..r15, one unused
    uint8_t vector[32][64];
    uint64_t mask[8];
};

int hold_flag;
int hold_level; // 0: xmm0-15, 1: ymm0-15, 2: zmm0-31 and k0-7
void hold(const struct registers *in, struct registers *out, int in_futex);

__asm__(
    ".macro vectors op reg width count\n"
    ".altmacro\n .set n, 0\n .rept \\count\n  vector_one \\op, \\reg, %n\n .set n, n+1\n .endr\n"
    ".noaltmacro\n.endm\n"
    ".macro vector_one op reg n\n"
    " .ifc \\op,load\n"
    "  .ifc \\reg,x\n movdqu 128+64*\\n(%rdi), %xmm\\n\n .endif\n"
    "  .ifc \\reg,y\n vmovdqu 128+64*\\n(%rdi), %ymm\\n\n .endif\n"
    "  .ifc \\reg,z\n vmovdqu64 128+64*\\n(%rdi), %zmm\\n\n .endif\n"
    "  .ifc \\reg,k\n kmovq 2176+8*\\n(%rdi), %k\\n\n .endif\n"
    " .else\n"
    "  .ifc \\reg,x\n movdqu %xmm\\n, 128+64*\\n(%rdi)\n .endif\n"
    "  .ifc \\reg,y\n vmovdqu %ymm\\n, 128+64*\\n(%rdi)\n .endif\n"
    "  .ifc \\reg,z\n vmovdqu64 %zmm\\n, 128+64*\\n(%rdi)\n .endif\n"
    "  .ifc \\reg,k\n kmovq %k\\n, 2176+8*\\n(%rdi)\n .endif\n"
    " .endif\n.endm\n"
    ".macro all_vectors op\n"
    " cmpl $1, hold_level(%rip)\n ja 12f\n je 11f\n"
    " vectors \\op, x, 16, 16\n jmp 13f\n"
    "11: vectors \\op, y, 32, 16\n jmp 13f\n"
    "12: vectors \\op, z, 64, 32\n vectors \\op, k, 8, 8\n"
    "13:\n.endm\n"
    ".text\n.globl hold\n.type hold, @function\nhold:\n"
    " push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n push %rsi\n"
    " all_vectors load\n"
    " test %edx, %edx\n"
    " mov 0(%rdi), %rax\n mov 8(%rdi), %rbx\n mov 16(%rdi), %rcx\n mov 24(%rdi), %rdx\n"
    " mov 32(%rdi), %rsi\n mov 48(%rdi), %rbp\n mov 56(%rdi), %r8\n mov 64(%rdi), %r9\n"
    " mov 72(%rdi), %r10\n mov 80(%rdi), %r11\n mov 88(%rdi), %r12\n mov 96(%rdi), %r13\n"
    " mov 104(%rdi), %r14\n mov 112(%rdi), %r15\n mov 40(%rdi), %rdi\n"
    " jne 2f\n"
    "1: pause\n cmpl $0, hold_flag(%rip)\n je 1b\n jmp 3f\n"
    "2: mov $202, %eax\n syscall\n cmpl $0, hold_flag(%rip)\n je 2b\n"
    "3: push %rdi\n mov 8(%rsp), %rdi\n"
    " mov %rax, 0(%rdi)\n mov %rbx, 8(%rdi)\n mov %rcx, 16(%rdi)\n mov %rdx, 24(%rdi)\n"
    " mov %rsi, 32(%rdi)\n mov %rbp, 48(%rdi)\n mov %r8, 56(%rdi)\n mov %r9, 64(%rdi)\n"
    " mov %r10, 72(%rdi)\n mov %r11, 80(%rdi)\n mov %r12, 88(%rdi)\n mov %r13, 96(%rdi)\n"
    " mov %r14, 104(%rdi)\n mov %r15, 112(%rdi)\n"
    " pop %rax\n mov %rax, 40(%rdi)\n"
    " all_vectors store\n"
    " pop %rsi\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
    ".size hold, .-hold\n");

static const size_t vector_bytes[] = {16, 32, 64};
static int started;

static void prepare(struct registers *in, unsigned seed, int in_futex) {
    fill(in, sizeof *in, seed);
    if (!in_futex) return;
    in->general[5] = (uintptr_t)&hold_flag; // rdi
    in->general[4] = FUTEX_WAIT_PRIVATE;    // rsi
    in->general[3] = 0;                     // rdx: the value
    in->general[9] = 0;                     // r10: no timeout
}

static void compare(const struct registers *in, const struct registers *out, unsigned seed,
                    int in_futex) {
    for (int i = 0; i < 15; i++) {
        if (in_futex && (i == 0 || i == 2 || i == 10)) continue; // rax rcx r11: the call's own
        CHECK(in->general[i] == out->general[i], "thread %u general register %d: expected %#lx, saw %#lx",
              seed, i, in->general[i], out->general[i]);
    }
    int count = hold_level == 2 ? 32 : 16;
    for (int i = 0; i < count; i++)
        CHECK(!memcmp(in->vector[i], out->vector[i], vector_bytes[hold_level]),
              "thread %u vector register %d: expected the pattern, saw other bytes", seed, i);
    for (int i = 0; hold_level == 2 && i < 8; i++)
        CHECK(in->mask[i] == out->mask[i], "thread %u mask register %d: expected %#lx, saw %#lx",
              seed, i, in->mask[i], out->mask[i]);
    if (in_futex)
        CHECK(out->general[0] == 0 || (long)out->general[0] == -EAGAIN,
              "thread %u futex: expected 0 or EAGAIN, saw %ld", seed, (long)out->general[0]);
}

static void *thread(void *argument) {
    unsigned seed = (uintptr_t)argument;
    int in_futex = seed % 2;
    struct registers in, out = {0};
    prepare(&in, seed, in_futex);
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    hold(&in, &out, in_futex);
    compare(&in, &out, seed, in_futex);
    return NULL;
}

int main(void) {
    hold_level = __builtin_cpu_supports("avx512bw") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, thread, (void *)(i + 1)), "pthread_create");
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < THREADS) sched_yield();
    usleep(50000);
    ready_and_wait();
    __atomic_store_n(&hold_flag, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &hold_flag, FUTEX_WAKE_PRIVATE, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    note("vector registers of %zu bytes", vector_bytes[hold_level]);
    pass();
}
