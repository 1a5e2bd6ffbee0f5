/* A child of fork() has its parent's objects as they were, and neither sees what the other does to them afterwards. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
enum { COUNT = 3000 };
static char *objects[COUNT];

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "forks.c:%d: %s\n", __LINE__, #condition); \
            _exit(1); \
        } \
    } while (0)

static size_t bytes_of(int at) { return at % 500 == 0 ? 200000 : (size_t)(at % 97) * 11 + 2; }

static void fill(char mark) {
    for (int at = 0; at < COUNT; at++) memset(objects[at], mark, bytes_of(at));
}

static void check(char mark) {
    for (int at = 0; at < COUNT; at++)
        CHECK(objects[at][0] == mark && objects[at][bytes_of(at) - 1] == mark);
}

static void generation(int depth) {
    int to_child[2], to_parent[2], status;
    char byte;
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    check((char)depth);
    pid_t pid = fork();
    CHECK(pid >= 0);
    /* The end of one shows the other one, which would wait otherwise. */
    close(pid == 0 ? to_child[1] : to_child[0]);
    close(pid == 0 ? to_parent[0] : to_parent[1]);
    if (pid == 0) {
        check((char)depth);
        fill((char)(depth + 1));
        for (int at = 0; at < COUNT; at += 2) {
            free(objects[at]);
            objects[at] = malloc(bytes_of(at));
        }
        fill((char)(depth + 1));
        CHECK(write(to_parent[1], "x", 1) == 1 && read(to_child[0], &byte, 1) == 1);
        /* The parent has freed and allocated meanwhile. */
        check((char)(depth + 1));
        if (depth < 4) generation(depth + 1);
        _exit(0);
    }
    CHECK(read(to_parent[0], &byte, 1) == 1);
    check((char)depth);
    for (int at = 1; at < COUNT; at += 2) {
        free(objects[at]);
        objects[at] = malloc(bytes_of(at));
        memset(objects[at], depth, bytes_of(at));
    }
    CHECK(write(to_child[1], "x", 1) == 1);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    check((char)depth);
    close(to_child[1]);
    close(to_parent[0]);
}

int main(void) {
    for (int at = 0; at < COUNT; at++) CHECK((objects[at] = malloc(bytes_of(at))) != NULL);
    fill(1);
    generation(1);
    /* Children that share the memory until they execute. */
    pid_t pid;
    int status;
    char *arguments[] = {"true", NULL};
    CHECK(posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(system("test $(echo 1) = 1") == 0);
    FILE *read_from = popen("echo hello", "r");
    char line[16] = "";
    CHECK(read_from && fgets(line, sizeof line, read_from) && strcmp(line, "hello\n") == 0);
    CHECK(pclose(read_from) == 0);
    /* Programs close descriptors that they do not know. */
    for (int fd = 3; fd < 1024; fd++) close(fd);
    for (int at = 0; at < COUNT; at++) free(objects[at]);
    for (int at = 0; at < COUNT; at++) CHECK((objects[at] = malloc(bytes_of(at))) != NULL);
    fill(1);
    generation(1);
    return 0;
}
