// Control words and stacks of the floating point units: MXCSR, x87 control, eight x87 values.
#include "check.h"

static uint32_t mxcsr(void) {
    uint32_t value;
    __asm__ volatile("stmxcsr %0" : "=m"(value));
    return value;
}

static uint16_t x87_control(void) {
    uint16_t value;
    __asm__ volatile("fnstcw %0" : "=m"(value));
    return value;
}

// Holds eight values on the x87 stack across a raw read of fd 0.
static long read_holding(const double *in, double *out, char *byte) {
    long result;
    __asm__ volatile(
        ".irp n,0,8,16,24,32,40,48,56\n fldl \\n(%[in])\n .endr\n"
        "syscall\n"
        ".irp n,56,48,40,32,24,16,8,0\n fstpl \\n(%[out])\n .endr\n"
        : "=a"(result)
        : "a"(SYS_read), "D"(0L), "S"(byte), "d"(1L), [in] "r"(in), [out] "r"(out)
        : "rcx", "r11", "memory", "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)",
          "st(7)");
    return result;
}

int main(void) {
    uint32_t rounding_up = (mxcsr() & ~0x6000u) | 0x4000u | 0x8040u; // flush to zero, too
    __asm__ volatile("ldmxcsr %0" : : "m"(rounding_up));
    uint16_t control = (x87_control() & ~0x0f00u) | 0x0400u;
    __asm__ volatile("fldcw %0" : : "m"(control));
    const double in[8] = {1.5, -2.25, 3e100, 4e-100, 5, 6.0625, -7, 8.125};
    double out[8];
    char byte;
    if (write(1, "READY\n", 6) != 6) return 3;
    long got = read_holding(in, out, &byte);
    CHECK(got == 1, "read of fd 0: expected 1, saw %ld", got);
    CHECK((mxcsr() & ~0x3fu) == (rounding_up & ~0x3fu), "MXCSR: expected %#x, saw %#x", rounding_up,
          mxcsr());
    CHECK(x87_control() == control, "x87 control: expected %#x, saw %#x", control, x87_control());
    CHECK(!memcmp(in, out, sizeof in), "x87 stack: expected the eight values, saw others");
    pass();
}
