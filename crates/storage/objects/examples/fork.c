/* Forks itself by farfork: the process and its clone go on from one ff_prepare.
 *
 *     fork FILE [ADDRESS ID KEY]
 *
 * The clone writes what it had at that moment to FILE, also if the process has changed it since. With an
 * address, id and key, only a clone of that seed is started. Needs root, and farfork in PATH or FARFORK_BIN.
 */
#include <farfork.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS (1 << 20)

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s (%s)\n", what, ff_error(), strerror(errno));
    return 1;
}

static int in_clone(const char *path, const uint32_t *numbers)
{
    uint64_t sum = 0;
    for (int at = 0; at < NUMBERS; at++)
        sum += numbers[at];
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return 1;
    fprintf(file, "sum %" PRIu64 "\n", sum);
    return fclose(file) == 0 ? 0 : 1;
}

int main(int count, char **arguments)
{
    uint64_t id = 0, key = 0;
    if (count == 5) {
        id = strtoull(arguments[3], NULL, 16);
        key = strtoull(arguments[4], NULL, 16);
        int pid = ff_resume(arguments[2], id, key);
        return pid > 0 ? printf("clone %d\n", pid) < 0 : failed("ff_resume");
    }
    if (count != 2)
        return 2;
    uint32_t *numbers = malloc(NUMBERS * sizeof *numbers);
    if (numbers == NULL)
        return 1;
    for (int at = 0; at < NUMBERS; at++)
        numbers[at] = 7;
    int side = ff_prepare(&id, &key);
    if (side == 1)
        return in_clone(arguments[1], numbers);
    if (side != 0)
        return failed("ff_prepare");
    memset(numbers, 0, NUMBERS * sizeof *numbers);
    char address[64];
    if (ff_seed_address(id, address, sizeof address) != 0)
        return failed("ff_seed_address");
    printf("seed %s %016" PRIx64 " %016" PRIx64 "\n", address, id, key);
    int pid = ff_resume(NULL, id, key);
    if (pid < 0)
        return failed("ff_resume");
    printf("clone %d\n", pid);
    fflush(stdout);
    /* A line ends the seed. */
    char line[16];
    if (fgets(line, sizeof line, stdin) == NULL || ff_reclaim(id) != 0)
        return failed("ff_reclaim");
    if (ff_reclaim(id) == 0 || errno != ENOENT)
        return 1;
    puts("reclaimed");
    free(numbers);
    return 0;
}
