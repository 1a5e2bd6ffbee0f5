/* The attacks of tests/programs/neighbours.h, for functions.
 *
 *   cc -shared -fPIC -O1 -pthread -D_GNU_SOURCE -Wl,-z,now -I tests/programs -o neighbours.so neighbours.c
 *
 * attack(images, secret, path of this library, report, bytes). Loaded by a program that cannot call it (Node.js),
 * it takes its first arguments from /tmp/neighbours.of, a line each, and answers in /tmp/neighbours.report.
 */
#include "neighbours.h"

void attack(const char *images, const char *masked, const char *library, char *report, size_t bytes)
{
    neighbours_attack(images, masked, library, report, bytes);
}

static int line(FILE *from, char *to, size_t bytes)
{
    if (!fgets(to, bytes, from))
        return 0;
    to[strcspn(to, "\n")] = 0;
    return 1;
}

/* Not if the attack itself has loaded this once more, after exec. */
__attribute__((constructor)) static void loaded(void)
{
    static char images[4096], masked[128], library[4096], report[1 << 16];
    FILE *asked = getenv(NB_AFTER_EXEC) ? NULL : fopen("/tmp/neighbours.of", "r"), *answer;
    if (!asked)
        return;
    if (line(asked, images, sizeof images) && line(asked, masked, sizeof masked) &&
        line(asked, library, sizeof library) && (answer = fopen("/tmp/neighbours.report", "w"))) {
        attack(images, masked, library, report, sizeof report);
        fputs(report, answer);
        fclose(answer);
    }
    fclose(asked);
}
