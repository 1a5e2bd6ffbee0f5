// A private file mapping with anonymous memory right behind it, as a library's data and its zeros:
// one discard of both brings the file back in one part and zeros in the other.
#include "file_map.h"

int main(void) {
    int fd = file_with("file", 4 * PAGE, 1);
    uint8_t *at = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    uint8_t *place = mmap(NULL, 12 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED, "mmap: %s", strerror(errno));
    at = mremap(at, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + 4 * PAGE);
    CHECK(at == place + 4 * PAGE, "mremap: %s", strerror(errno));
    fill(place, 12 * PAGE, 2);
    ready_and_wait();
    CHECK_FILLED(place, 12 * PAGE, 2);
    MUST(syscall(SYS_madvise, place, 12 * PAGE, MADV_DONTNEED));
    CHECK_ZEROS(place, 4 * PAGE);
    CHECK_FILLED(place + 4 * PAGE, 4 * PAGE, 1);
    CHECK_ZEROS(place + 8 * PAGE, 4 * PAGE);
    pass();
}
