// Serves one connection after the other by the action interface, and answers with what it has counted.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(8080)};
    if (bind(listening, (void *)&at, sizeof at) || listen(listening, 16)) {
        perror("listening");
        return 1;
    }
    for (int count = 0;;) {
        int one = accept(listening, NULL, NULL);
        char request[65536], body[64], answer[256];
        size_t have = 0;
        char *end = NULL;
        while (have < sizeof request - 1 && (!end || !strstr(end, "}"))) {
            ssize_t got = read(one, request + have, sizeof request - 1 - have);
            if (got <= 0) break;
            request[have += got] = 0;
            end = strstr(request, "\r\n\r\n");
        }
        int is_run = !strncmp(request, "POST /run ", 10);
        int is_known = is_run || !strncmp(request, "POST /init ", 11);
        count += is_run;
        char *sleep_s = strstr(request, "\"sleep\":");
        if (is_run && sleep_s) sleep(atoi(sleep_s + 8));
        snprintf(body, sizeof body, "{\"count\": %d, \"uid\": %d}", count, (int)getuid());
        int length = snprintf(answer, sizeof answer,
                              "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                              is_known ? "200 OK" : "404 Not Found", strlen(body), body);
        if (write(one, answer, length) != length) return 1;
        close(one);
    }
}
