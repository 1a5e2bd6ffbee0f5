// The vDSO's getrandom keeps a state in user memory. Two clones must not draw the same bytes:
// this prints what it drew, and the driver compares the clones.
#include "check.h"
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/random.h>

struct opaque_params {
    uint32_t size, prot, flags, reserved[13];
};

typedef ssize_t (*vgetrandom)(void *, size_t, unsigned, void *, size_t);

// Finds the symbol by hand: Debian 12's glibc does not use this function yet, newer ones do.
static vgetrandom find_vgetrandom(void) {
    uintptr_t base = getauxval(AT_SYSINFO_EHDR);
    if (!base) return NULL;
    const ElfW(Ehdr) *header = (void *)base;
    const ElfW(Shdr) *sections = (void *)(base + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM) continue;
        const ElfW(Sym) *symbols = (void *)(base + sections[i].sh_offset);
        const char *names = (void *)(base + sections[sections[i].sh_link].sh_offset);
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++)
            if (!strcmp(names + symbols[s].st_name, "__vdso_getrandom"))
                return (vgetrandom)(base + symbols[s].st_value);
    }
    return NULL;
}

static void *make_state(vgetrandom draw, size_t *bytes) {
    struct opaque_params params;
    ssize_t error = draw(NULL, 0, 0, &params, ~0UL);
    CHECK(error == 0, "vgetrandom parameters: expected 0, saw %zd", error);
    *bytes = params.size;
    void *state = mmap(NULL, PAGE, params.prot, params.flags, -1, 0);
    CHECK(state != MAP_FAILED, "mmap of vgetrandom's state: %s", strerror(errno));
    return state;
}

static void print_value(const uint8_t *bytes) {
    char hex[80] = "VALUE ";
    for (int i = 0; i < 32; i++) sprintf(hex + 6 + 2 * i, "%02x", bytes[i]);
    strcat(hex, "\n");
    if (write(1, hex, strlen(hex)) < 0) _exit(3);
}

int main(void) {
    uint8_t warm[32], drawn[32];
    vgetrandom draw = find_vgetrandom();
    size_t state_bytes = 0;
    void *state = draw ? make_state(draw, &state_bytes) : NULL;
    // Only a state that was used before the checkpoint can repeat itself after it.
    if (draw) MUST(draw(warm, 32, 0, state, state_bytes));
    CHECK(getrandom(warm, 32, 0) == 32, "getrandom: expected 32 bytes");
    ready_and_wait();
    if (draw) {
        CHECK(draw(drawn, 32, 0, state, state_bytes) == 32, "vgetrandom: expected 32 bytes");
        CHECK(memcmp(warm, drawn, 32), "vgetrandom: expected new bytes, saw the old ones");
        print_value(drawn);
    } else {
        note("this vDSO has no getrandom");
    }
    CHECK(getrandom(drawn, 32, 0) == 32, "getrandom: expected 32 bytes");
    print_value(drawn);
    pass();
}
