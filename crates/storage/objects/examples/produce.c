/* Sends points to the consumer: produce REGION COUNT. Start it again, or several times: the mailbox has one
 * sender at a time. Kill it at any moment: nothing is lost but the point it was writing. */
#include <farfork.h>
#include <stdio.h>
#include <stdlib.h>

struct point {
    uint64_t number;
    double x, y;
};

static int fail(const char *what)
{
    fprintf(stderr, "produce: %s: %s\n", what, ff_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: produce REGION COUNT\n");
        return 2;
    }
    ff_region *region = ff_open(argv[1]);
    if (!region)
        return fail("cannot start");
    ff_mailbox *points = ff_mailbox_open(region, "points", 64);
    if (!points)
        return fail("cannot open the mailbox");
    for (uint64_t number = 0; number < strtoull(argv[2], NULL, 10); number++) {
        struct point *point = ff_alloc(region, sizeof *point);
        if (!point)
            return fail("cannot allocate");
        *point = (struct point){.number = number, .x = 0.5 * (double)number, .y = 2};
        /* From here on the point is the consumer's. */
        if (ff_send(points, point, -1))
            return fail("cannot send");
    }
    ff_close(region);
    return 0;
}
