// Contexts of Linux AIO in which nothing is under way: they have their addresses and their room, and a
// thread that waits for an event goes on waiting.
#include "aio.h"
#include <pthread.h>

static aio_context_t small, large;
static unsigned small_room, large_room;
static int file;

static const struct ring *ring(aio_context_t context) {
    return (const struct ring *)context;
}

static void read_once(aio_context_t context, uint64_t tag) {
    struct io_event event;
    submit_read(context, file, tag);
    CHECK(events(context, 1, &event) == 1, "expected an event");
    CHECK(event.data == tag && event.res == 512, "expected 512 bytes of %lu, saw %lld of %llu", tag, event.res, event.data);
}

static void *await(void *unused) {
    struct io_event event;
    // A checkpoint interrupts it, as any stop does.
    while (syscall(SYS_io_getevents, small, 1, 1, &event, NULL) != 1) CHECK(errno == EINTR, "io_getevents: %s", strerror(errno));
    CHECK(event.data == 77, "expected 77, saw %llu", event.data);
    return unused;
}

int main(void) {
    pthread_t waiting;
    char content[512];
    fill(content, sizeof content, 1);
    file = MUST(open("content", O_CREAT | O_RDWR | O_TRUNC, 0644));
    CHECK(write(file, content, sizeof content) == sizeof content, "write: %s", strerror(errno));
    small = make_context(8);
    large = make_context(1000);
    small_room = ring(small)->events, large_room = ring(large)->events;
    for (int at = 0; at < 5; at++) read_once(large, at);
    CHECK(!pthread_create(&waiting, NULL, await, NULL), "pthread_create");
    usleep(20000);
    ready_and_wait();
    CHECK(ring(small)->events == small_room && ring(large)->events == large_room, "room: saw %u and %u", ring(small)->events, ring(large)->events);
    CHECK(ring(large)->head == ring(large)->tail, "expected no event in the ring");
    submit_read(small, file, 77);
    CHECK(!pthread_join(waiting, NULL), "pthread_join");
    for (unsigned at = 0; at < 2 * large_room; at++) read_once(large, at);
    aio_context_t later = make_context(4);
    read_once(later, 9);
    MUST(syscall(SYS_io_destroy, large));
    REFUSED(syscall(SYS_io_getevents, large, 0, 0, NULL, NULL), EINVAL);
    read_once(small, 10);
    MUST(syscall(SYS_io_destroy, small));
    pass();
}
