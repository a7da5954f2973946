/* The clients of the bench: `load PORT stream|json CONNECTIONS AMOUNT FILE` sends the request in FILE (head and body).

   stream: every connection asks AMOUNT times, one after the other, and counts the records ("data: ") it gets.
   json: every connection repeats the request for AMOUNT seconds, keeping the connection where the server does.
   Prints one line of JSON: answers, records, errors, seconds. One thread, poll(), POSIX. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 256
#define MAX_HEAD 65536
#define STAGGER_US 104 /* 48 streams spread evenly over the 5 ms between two chunks of one */
#define STALL_MS 20000

struct client {
    char held[MAX_HEAD]; /* json: the answer so far; stream: its last bytes */
    int used, asked, matched;
};

static struct pollfd polled[MAX_CONNECTIONS];
static struct client clients[MAX_CONNECTIONS];
static char request[65536];
static int request_size, port, streaming;
static long answers = 0, records = 0, errors = 0;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void ask(int i) {
    struct client *c = &clients[i];
    int one = 1;
    if (polled[i].fd < 0) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to)) {
            perror("load: connect");
            exit(1);
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        polled[i] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    if (send(polled[i].fd, request, request_size, 0) != request_size) errors++;
    c->used = c->matched = 0;
    c->asked++;
}

static void hang_up(int i) {
    close(polled[i].fd);
    polled[i].fd = -1;
}

static void count_records(struct client *c, const char *data, int size) {
    static const char mark[] = "data: ";
    for (int k = 0; k < size; k++) {
        c->matched = data[k] == mark[c->matched] ? c->matched + 1 : data[k] == mark[0];
        if (c->matched == 6) {
            records++;
            c->matched = 0;
        }
    }
}

/* Whether the answer in `held` is complete. */
static int complete(struct client *c) {
    static const char last[] = "\r\n0\r\n\r\n";
    char *end, *length;
    if (c->used >= 7 && memcmp(c->held + c->used - 7, last, 7) == 0) return 1;
    if (streaming) return 0;
    c->held[c->used] = 0;
    if (!(end = strstr(c->held, "\r\n\r\n"))) return 0;
    *end = 0;
    length = strcasestr(c->held, "\r\ncontent-length:");
    *end = '\r';
    return length && end + 4 - c->held + strtol(length + 17, NULL, 10) <= c->used;
}

/* Read what is there; 1 when the answer is complete, -1 when it broke. */
static int receive(int i) {
    struct client *c = &clients[i];
    char data[65536];
    int got = recv(polled[i].fd, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) return -1;
    if (streaming) {
        count_records(c, data, got);
        int keep = got < 7 && c->used + got > 7 ? 7 - got : got >= 7 ? 0 : c->used;
        memmove(c->held, c->held + c->used - keep, keep);
        int fresh = got < 7 ? got : 7;
        memcpy(c->held + keep, data + got - fresh, fresh);
        c->used = keep + fresh;
    } else if (c->used + got < MAX_HEAD) {
        memcpy(c->held + c->used, data, got);
        c->used += got;
    }
    return complete(c);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    port = atoi(argv[1]);
    streaming = strcmp(argv[2], "stream") == 0;
    int connections = atoi(argv[3]), running = connections;
    double amount = atof(argv[4]);
    FILE *file = fopen(argv[5], "rb");
    request_size = file ? (int)fread(request, 1, sizeof request, file) : 0;
    if (!request_size || connections > MAX_CONNECTIONS) return 2;
    signal(SIGPIPE, SIG_IGN);
    double began = now_s();
    for (int i = 0; i < connections; i++) {
        polled[i].fd = -1;
        ask(i);
        usleep(streaming ? STAGGER_US : 0);
    }
    while (running > 0) {
        if (poll(polled, connections, STALL_MS) == 0) {
            fprintf(stderr, "load: no byte for %d s\n", STALL_MS / 1000);
            return 1;
        }
        for (int i = 0; i < connections; i++) {
            int done = polled[i].fd >= 0 && polled[i].revents ? receive(i) : 0;
            if (!done) continue;
            answers += done > 0;
            errors += done < 0;
            if (streaming || done < 0 || strcasestr(clients[i].held, "\r\nconnection: close\r\n")) hang_up(i);
            if (streaming ? clients[i].asked < amount : now_s() - began < amount) {
                ask(i);
            } else {
                if (polled[i].fd >= 0) hang_up(i);
                running--;
            }
        }
    }
    printf("{\"answers\":%ld,\"records\":%ld,\"errors\":%ld,\"seconds\":%.3f}\n", answers, records, errors,
           now_s() - began);
    return 0;
}
