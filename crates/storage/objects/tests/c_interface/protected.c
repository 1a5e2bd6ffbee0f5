/* A program on a region whose metadata is protected, or not: works with it, then stores where it should not. Prints how
 * many of these stores, of how many, raised SIGSEGV because of the key. */
#define _POSIX_C_SOURCE 200809L
#include <farfork.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *path;
static pthread_barrier_t opened;
static sigjmp_buf after;
static volatile int trapped;
static ff_region *volatile in_handler;
static void *volatile object;
static volatile int read_in_handler;

/* POSIX does not have it; the kernel's number is fixed. */
#ifndef SEGV_PKUERR
#define SEGV_PKUERR 4
#endif

static void fail(const char *what)
{
    const char *error = ff_error();
    fprintf(stderr, "%s: %s\n", what, error ? error : "no error");
    exit(1);
}

static void trap(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (info->si_code != SEGV_PKUERR)
        fail("another SIGSEGV");
    trapped++;
    /* A handler begins without rights to any key. */
    read_in_handler = ff_usable_size(in_handler, object) == 64;
    siglongjmp(after, 1);
}

/* Began before the key was there: the kernel gives it no rights to memory that has it. */
static void *send_one(void *unused)
{
    pthread_barrier_wait(&opened);
    ff_region *region = ff_open(path);
    ff_mailbox *mailbox = region ? ff_mailbox_open(region, "m", 4) : NULL;
    char *sent = mailbox ? ff_alloc(region, 64) : NULL;
    if (!sent)
        fail("a client of another thread");
    strcpy(sent, "sent");
    if (ff_send(mailbox, sent, -1))
        fail("a send");
    ff_close(region);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    path = argv[1];
    pthread_t thread;
    pthread_barrier_init(&opened, NULL, 2);
    pthread_create(&thread, NULL, send_one, NULL);
    ff_region *region = ff_open(path);
    if (!region)
        fail("ff_open");
    pthread_barrier_wait(&opened);
    ff_mailbox *mailbox = ff_mailbox_open(region, "m", 4);
    char *received = mailbox ? ff_recv(mailbox, -1) : NULL;
    if (!received || strcmp(received, "sent"))
        fail("ff_recv");
    pthread_join(thread, NULL);
    ff_free(region, received);
    for (int round = 0; round < 3; round++) {
        static void *all[3000];
        for (int i = 0; i < 3000; i++)
            if (!(all[i] = ff_alloc(region, 64)))
                fail("ff_alloc");
            else
                memset(all[i], 0xff, 64);
        for (int i = 0; i < 3000; i++)
            ff_free(region, all[i * 7 % 3000]);
    }
    object = ff_alloc(region, 64);
    in_handler = region;
    if (!object)
        fail("ff_alloc");
    memset(object, 1, 64);
    /* The low 48 bits of a reference are its distance from the beginning of the region. */
    uint64_t offset = ff_ref_of(region, object) & 0xffffffffffff;
    char *begin = (char *)object - offset;
    /* Header, clients, mailboxes, spans, marks, and the owner byte of the object. */
    uint64_t places[] = {64, 4096 + 8 * 256, 36864 + 8448, 315392 + 8, 316000, (1 << 20) - (1 << 16) + offset / 16};
    int count = sizeof places / sizeof *places;
    struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    for (int i = 0; i < count; i++) {
        volatile char *at = begin + places[i];
        /* Lets this thread read again after the handler. */
        ff_free(region, ff_alloc(region, 16));
        char same = *at;
        if (!sigsetjmp(after, 1))
            *at = same;
    }
    if (trapped && !read_in_handler)
        fail("a read in a handler");
    ff_free(region, object);
    ff_close(region);
    printf("%d of %d\n", trapped, count);
    return 0;
}
