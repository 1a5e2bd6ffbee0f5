// AMX tiles, a state that a process has to ask for: permission and content survive.
#include "check.h"
#include <cpuid.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
#define ROWS 16
#define ROW_BYTES 64

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((packed));

static int has_amx(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) &&
           !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}

__attribute__((target("amx-tile"))) static long hold_tiles(const struct tile_config *config,
                                                            const uint8_t *in, uint8_t *out) {
    long result;
    char byte;
    __asm__ volatile("ldtilecfg %[config]\n"
                     "tileloadd (%[in],%[stride],1), %%tmm0\n"
                     "tileloadd 1024(%[in],%[stride],1), %%tmm7\n"
                     "syscall\n"
                     "tilestored %%tmm0, (%[out],%[stride],1)\n"
                     "tilestored %%tmm7, 1024(%[out],%[stride],1)\n"
                     "tilerelease\n"
                     : "=a"(result)
                     : "a"(SYS_read), "D"(0L), "S"(&byte), "d"(1L), [config] "m"(*config),
                       [in] "r"(in), [out] "r"(out), [stride] "r"((long)ROW_BYTES)
                     : "rcx", "r11", "memory");
    return result;
}

int main(void) {
    if (!has_amx()) {
        note("UNAVAILABLE this processor has no AMX");
        ready_and_wait();
        pass();
    }
    static uint8_t in[2 * ROWS * ROW_BYTES], out[2 * ROWS * ROW_BYTES];
    struct tile_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = ROW_BYTES;
        config.rows[tile] = ROWS;
    }
    fill(in, sizeof in, 1);
    if (write(1, "READY\n", 6) != 6) return 3;
    long got = hold_tiles(&config, in, out);
    CHECK(got == 1, "read of fd 0: expected 1, saw %ld", got);
    CHECK_FILLED(out, sizeof out, 1);
    pass();
}
