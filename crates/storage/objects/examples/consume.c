/* Receives points and prints their sum: consume REGION COUNT. */
#include <errno.h>
#include <farfork.h>
#include <stdio.h>
#include <stdlib.h>

struct point {
    uint64_t number;
    double x, y;
};

static int fail(const char *what)
{
    fprintf(stderr, "consume: %s: %s\n", what, ff_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: consume REGION COUNT\n");
        return 2;
    }
    ff_region *region = ff_open(argv[1]);
    if (!region)
        return fail("cannot start");
    ff_mailbox *points = ff_mailbox_open(region, "points", 64);
    if (!points)
        return fail("cannot open the mailbox");
    double sum = 0;
    for (uint64_t number = 0; number < strtoull(argv[2], NULL, 10); number++) {
        /* No copy: this is the memory that the producer wrote to. */
        struct point *point = ff_recv(points, 10 * 1000 * 1000);
        if (!point && errno == ETIMEDOUT)
            return fail("no producer");
        if (!point)
            return fail("cannot receive");
        if (point->number != number)
            fprintf(stderr, "consume: point %llu instead of %llu\n", (unsigned long long)point->number,
                    (unsigned long long)number);
        sum += point->x * point->y;
        ff_free(region, point);
    }
    struct ff_check_result counts;
    if (ff_check(region, &counts))
        return fail("the region is damaged");
    printf("sum %.0f, %llu of %llu bytes free\n", sum, (unsigned long long)counts.bytes_free,
           (unsigned long long)counts.bytes);
    ff_close(region);
    return 0;
}
