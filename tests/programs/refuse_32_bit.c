// Registers and system calls of 32-bit programs are others. Without check.h, which is for 64 bits.
#include <unistd.h>

int main(void) {
    char byte;
    if (write(1, "READY\n", 6) != 6 || read(0, &byte, 1) != 1) return 1;
    return write(1, "PASS\n", 5) != 5;
}
