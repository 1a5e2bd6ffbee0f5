// Memory of every kind that a fork treats in its own way. On 'c' all of it changes, on 'w' no child is to be seen.
// Every byte belongs to the generation that the program itself knows: one that is mixed from two is found.
#include "check.h"
#include <pthread.h>

#define BYTES (3 * HUGE + 5 * PAGE)

static unsigned generation = 1;
static uint8_t *private_, *kept_from_fork, *wiped, *shared, *memory_file, *own_pages, *no_access, *file;

static volatile unsigned long ticks;

static void *tick(void *unused) {
    for (;; ticks++) usleep(500);
    return unused;
}

static void write_all(void) {
    fill(private_, BYTES, generation);
    fill(kept_from_fork, 16 * PAGE, generation + 1);
    fill(wiped, 16 * PAGE, generation + 2);
    fill(shared, 32 * PAGE, generation + 3);
    fill(memory_file, 8 * PAGE, generation + 4);
    fill(own_pages, 2 * PAGE, generation + 5);
    fill(file, PAGE, generation + 6);
    MUST(mprotect(no_access, 4 * PAGE, PROT_READ | PROT_WRITE));
    fill(no_access, 4 * PAGE, generation + 7);
    MUST(mprotect(no_access, 4 * PAGE, PROT_NONE));
}

static void check_all(void) {
    CHECK_FILLED(private_, BYTES, generation);
    CHECK_FILLED(kept_from_fork, 16 * PAGE, generation + 1);
    CHECK_FILLED(wiped, 16 * PAGE, generation + 2);
    CHECK_FILLED(shared, 32 * PAGE, generation + 3);
    CHECK_FILLED(memory_file, 8 * PAGE, generation + 4);
    CHECK_FILLED(own_pages, 2 * PAGE, generation + 5);
    CHECK_FILLED_FROM(own_pages + 2 * PAGE, 6 * PAGE, 99, 2 * PAGE);
    CHECK_FILLED(file, PAGE, generation + 6);
    MUST(mprotect(no_access, 4 * PAGE, PROT_READ));
    CHECK_FILLED(no_access, 4 * PAGE, generation + 7);
    MUST(mprotect(no_access, 4 * PAGE, PROT_NONE));
}

static void *mapped(int fd, size_t bytes, int flags) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    return at;
}

int main(void) {
    private_ = anonymous(BYTES + 3 * HUGE); // the rest is never touched
    kept_from_fork = anonymous(16 * PAGE);
    wiped = anonymous(16 * PAGE);
    shared = mapped(-1, 32 * PAGE, MAP_SHARED | MAP_ANONYMOUS);
    int memory = MUST(memfd_create("seed", 0));
    MUST(ftruncate(memory, 8 * PAGE));
    memory_file = mapped(memory, 8 * PAGE, MAP_SHARED);
    int other = MUST(memfd_create("private", 0));
    MUST(ftruncate(other, 8 * PAGE));
    fill(mapped(other, 8 * PAGE, MAP_SHARED), 8 * PAGE, 99);
    own_pages = mapped(other, 8 * PAGE, MAP_PRIVATE);
    int program = MUST(open("/proc/self/exe", O_RDONLY));
    file = mapped(program, 2 * PAGE, MAP_PRIVATE);
    close(program);
    no_access = anonymous(4 * PAGE);
    MUST(raw_madvise(kept_from_fork, 16 * PAGE, MADV_DONTFORK));
    MUST(raw_madvise(wiped, 16 * PAGE, MADV_WIPEONFORK));
    write_all();
    pthread_t thread;
    pthread_create(&thread, NULL, tick, NULL);
    for (char command = ready_and_wait(); command != '\n';) {
        if (command == 'c') {
            generation += 10;
            write_all();
        } else if (command == 'v') {
            check_all();
        } else {
            REFUSED(waitpid(-1, NULL, WNOHANG), ECHILD);
        }
        if (write(1, "OK\n", 3) != 3) _exit(3);
        MUST(read(0, &command, 1));
    }
    unsigned long seen = ticks;
    for (int i = 0; i < 1000 && ticks == seen; i++) usleep(1000);
    CHECK(ticks != seen, "the other thread stands still");
    REFUSED(waitpid(-1, NULL, WNOHANG), ECHILD);
    check_all();
    CHECK_ZEROS(private_ + BYTES, 3 * HUGE);
    printf("GENERATION %u\n", generation);
    fflush(stdout);
    pass();
}
