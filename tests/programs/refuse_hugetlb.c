// A shared mapping of huge pages that are set aside; none of them has to be there as yet.
#include "check.h"

int main(void) {
    int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE;
    void *at = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) note("UNAVAILABLE huge pages: %s", strerror(errno));
    ready_and_wait();
    if (at != MAP_FAILED) MUST(munmap(at, HUGE));
    pass();
}
