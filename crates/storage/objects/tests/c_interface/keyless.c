/* Uses up all protection keys, and then wants its region's metadata protected. */
#define _GNU_SOURCE
#include <errno.h>
#include <farfork.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    while (pkey_alloc(0, 0) >= 0)
        ;
    ff_region *region = ff_open(argv[1]);
    int number = errno;
    const char *error = ff_error();
    if (!region && number == EOPNOTSUPP && error && strstr(error, "unset FARFORK_PROTECTED"))
        return 0;
    fprintf(stderr, "errno %d, %s\n", number, error ? error : "no error");
    return 1;
}
