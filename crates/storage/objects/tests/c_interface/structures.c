/* A tree that two clients share. Ends with the line of what is wrong. */
#include <errno.h>
#include <farfork.h>
#include <stdio.h>

struct node {
    ff_ref child[2];
    long number;
};

#define DEMAND(is_true)                                                       \
    do {                                                                      \
        if (!(is_true)) {                                                     \
            fprintf(stderr, "line %d: %s\n", __LINE__, ff_error());           \
            return 1;                                                         \
        }                                                                     \
    } while (0)

static struct node *new_node(ff_region *region, long number)
{
    struct node *node = ff_alloc_refs(region, sizeof *node, 2);
    if (node)
        node->number = number;
    return node;
}

static long sum(ff_region *region, const struct node *node)
{
    long total = node->number;
    for (int side = 0; side < 2; side++)
        if (node->child[side])
            total += sum(region, ff_deref(region, node->child[side]));
    return total;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    ff_region *writer = ff_open(argv[1]);
    ff_region *reader = ff_open(argv[1]);
    DEMAND(writer && reader && ff_client(writer) == 1 && ff_client(reader) == 2);
    struct node *root = new_node(writer, 1);
    struct node *left = new_node(writer, 10);
    struct node *right = new_node(writer, 100);
    DEMAND(root && left && right && ff_usable_size(writer, root) >= sizeof *root);
    DEMAND(!ff_link(writer, root, root, 0, left) && !ff_link(writer, root, root, 1, right));
    DEMAND(!ff_link(writer, root, left, 1, right));
    DEMAND(ff_link(writer, root, root, 0, right) == -1 && errno == EINVAL);
    DEMAND(ff_link(writer, root, root, 2, right) == -1 && errno == EINVAL);
    DEMAND(!ff_alloc_refs(writer, 1, 70000) && errno == EINVAL);
    ff_mailbox *out = ff_mailbox_open(writer, "trees", 4);
    ff_mailbox *in = ff_mailbox_open(reader, "trees", 4);
    DEMAND(out && in && !ff_send_root(out, root, 0));
    struct node *seen = ff_recv(in, 0);
    DEMAND(seen == root && sum(reader, seen) == 211);
    DEMAND(ff_unlink(reader, root, root, 0) == -1 && errno == EPERM);
    seen->number = 2; /* Contents are for every client to change. */
    DEMAND(!ff_unlink(writer, root, root, 0) && sum(reader, seen) == 102);
    DEMAND(ff_collect(writer, root) == 0);
    DEMAND(!ff_writer_transfer(writer, root, 2) && !ff_writer_transfer(reader, root, 2));
    DEMAND(ff_writer_transfer(writer, root, 1) == -1 && errno == EPERM);
    DEMAND(ff_writer_transfer(writer, root, 500) == -1 && errno == EINVAL);
    DEMAND(!ff_release(writer, root) && ff_release(writer, root) == -1 && errno == EINVAL);
    DEMAND(ff_collect(reader, root) == 1);
    struct node *other = new_node(reader, 1000);
    DEMAND(other && !ff_change(reader, root, root, 1, other) && sum(reader, root) == 1002);
    struct ff_check_result counts;
    DEMAND(!ff_check(reader, &counts) && counts.linked == 4);
    DEMAND(!ff_release(reader, root));
    DEMAND(!ff_check(reader, &counts) && counts.bytes_free == counts.bytes);
    ff_close(reader);
    ff_close(writer);
    return 0;
}
