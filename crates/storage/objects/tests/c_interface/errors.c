/* Every error that the header names. Ends with 1 at the first that is another. */
#include <errno.h>
#include <farfork.h>
#include <stdio.h>
#include <string.h>

static int wrong;

static void expect(int is_true, int number, const char *words, const char *what)
{
    int found = errno;
    const char *error = ff_error();
    if (!is_true || found != number || !error || !strstr(error, words)) {
        fprintf(stderr, "%s: errno %d, \"%s\"\n", what, found, error ? error : "none");
        wrong = 1;
    }
    errno = 0;
}

int main(int argc, char **argv)
{
    char local[64];
    if (argc != 2)
        return 2;
    expect(!ff_open(NULL), EINVAL, "path is NULL", "no path");
    expect(!ff_open("/nonexistent/region"), ENOENT, "No such file", "no file");
    ff_region *region = ff_open(argv[1]);
    ff_region *other = ff_open(argv[1]);
    if (!region || !other)
        return 1;
    expect(!ff_alloc(region, 1 << 20), ENOMEM, "1048576 bytes", "too large");
    void *large = ff_alloc(region, 100000);
    if (!large || ff_usable_size(region, large) != 131072)
        return 1;
    memset(large, 1, 131072);
    ff_free(region, large);
    expect(!ff_usable_size(region, large), EINVAL, "cannot measure", "a freed object");
    void *object = ff_alloc(region, 64);
    if (!object || ff_usable_size(region, object) != 64 || ff_usable_size(region, NULL) != 0)
        return 1;
    ff_ref ref = ff_ref_of(region, object);
    if (!ref || ff_deref(other, ref) != object)
        return 1;
    expect(!ff_deref(region, ref + 8), EINVAL, "not a reference", "a wrong reference");
    errno = 0;
    ff_free(region, local);
    expect(1, EINVAL, "cannot free", "a foreign pointer");
    ff_free(other, object);
    expect(1, EINVAL, "cannot free", "another client's object");
    expect(!ff_mailbox_open(region, "", 4), EINVAL, "invalid mailbox name", "no name");
    expect(!ff_mailbox_open(region, "m", 3), EINVAL, "power of two", "three slots");
    ff_mailbox *mailbox = ff_mailbox_open(region, "m", 1);
    ff_mailbox *at_other = ff_mailbox_open(other, "m", 1);
    if (!mailbox || mailbox != ff_mailbox_open(region, "m", 1))
        return 1;
    expect(!ff_recv(at_other, 0), EAGAIN, "empty", "an empty mailbox");
    expect(!ff_recv(at_other, 1000), ETIMEDOUT, "empty", "an empty mailbox for 1 ms");
    if (ff_send(mailbox, object, -1))
        return 1;
    expect(ff_send(mailbox, object, 0) == -1, EINVAL, "cannot send", "an object sent twice");
    void *second = ff_alloc(region, 1);
    expect(ff_send(mailbox, second, 0) == -1, EAGAIN, "full", "a full mailbox");
    expect(ff_send(mailbox, second, 1000) == -1, ETIMEDOUT, "full", "a full mailbox for 1 ms");
    void *third = ff_alloc(other, 1);
    expect(ff_send(at_other, third, 0) == -1, EBUSY, "client 1 does so", "a second sender");
    if (ff_recv(at_other, -1) != object)
        return 1;
    ff_free(region, NULL);
    struct ff_check_result counts;
    if (ff_check(region, &counts) || counts.owned != 3 || counts.bytes_owned != 64 + 16 + 16 ||
        counts.bytes_free + counts.bytes_owned != counts.bytes)
        return 1;
    while (ff_alloc(region, 64))
        ;
    expect(1, ENOMEM, "region is full", "a full region");
    ff_close(other);
    ff_close(region);
    ff_close(NULL);
    return wrong;
}
