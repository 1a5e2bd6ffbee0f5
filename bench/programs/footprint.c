// A warm process of a given size that answers on a listening Unix socket.
//
// usage: footprint LISTEN_FD MEGABYTES clustered|scattered
//
// Its memory holds one number per eight bytes, each a function of its place alone. A request
// writes about 1 % of the pages and reads about 20 %, always the same ones, as a function that is
// called again and again does. "clustered": reads in runs of 64 pages, writes in runs of 16;
// "scattered": every page that is touched stands alone.
//
// request  { u64 op; u64 seed; }      op 1: answer; op 2: a fork()ed child answers, and goes on to
// answer   { u64 checksum; u64 pid; }               serve this connection; op 3: end
//
// The checksum depends on the seed and on every page touched, and on no earlier request.
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGE_WORDS = 512, ANSWER = 1, FORK = 2, END = 3 };

struct request { uint64_t op, seed; };
struct answer { uint64_t checksum, pid; };

static uint64_t *memory;
static uint64_t pages;
static uint64_t read_run, write_run;

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void fill(void)
{
    for (uint64_t word = 0; word < pages * PAGE_WORDS; word++)
        memory[word] = mix(word + 1);
}

// One run in five is read, one in a hundred is written; the writes come first.
static uint64_t serve_request(uint64_t seed)
{
    uint64_t sum = mix(seed);
    for (uint64_t run = 0; run * write_run < pages; run++) {
        if (mix(run) % 100 != 0)
            continue;
        for (uint64_t page = run * write_run; page < (run + 1) * write_run && page < pages; page++)
            memory[page * PAGE_WORDS] = mix(seed ^ page);
    }
    for (uint64_t run = 0; run * write_run < pages; run++) {
        if (mix(run) % 100 != 0)
            continue;
        for (uint64_t page = run * write_run; page < (run + 1) * write_run && page < pages; page++)
            sum += memory[page * PAGE_WORDS];
    }
    for (uint64_t run = 0; run * read_run < pages; run++) {
        if (mix(~run) % 5 != 0)
            continue;
        for (uint64_t page = run * read_run; page < (run + 1) * read_run && page < pages; page++)
            sum = (sum << 1 | sum >> 63) + memory[page * PAGE_WORDS + 1 + (seed + page) % 511];
    }
    return sum;
}

static int answer(int connection, uint64_t seed)
{
    struct answer answer = { serve_request(seed), (uint64_t)getpid() };
    return send(connection, &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer;
}

// Serves a connection to its end.
static void serve(int connection)
{
    struct request request;
    int is_child = 0;
    while (recv(connection, &request, sizeof request, MSG_WAITALL) == sizeof request) {
        if (request.op == END)
            _exit(0);
        if (request.op == FORK && !is_child) {
            pid_t pid = fork();
            if (pid != 0)
                break; // the child has the connection; a failed fork hangs up
            is_child = 1;
        }
        if (!answer(connection, request.seed))
            break;
    }
    if (is_child)
        _exit(0);
    close(connection);
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int listener = atoi(arguments[1]);
    pages = strtoull(arguments[2], NULL, 10) * 256;
    int is_scattered = strcmp(arguments[3], "scattered") == 0;
    read_run = is_scattered ? 1 : 64;
    write_run = is_scattered ? 1 : 16;
    int protection = PROT_READ | PROT_WRITE;
    memory = mmap(NULL, pages * 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    fill();
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection >= 0)
            serve(connection);
    }
}
