/* The model process of the bench: answers at once or streams CHUNKS records, INTERVAL_MS apart, at next to no cost.

   It stands in for llama-server (--port N of its flags, /health, the router's lines on stdin and stdout) so that what a
   relay costs can be told from what its upstream costs. One thread, poll(), POSIX. A stream fits into the socket
   buffers of loopback as a whole, so a short write means a broken set-up and ends the program. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
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

#define CHUNKS 200
#define INTERVAL_MS 5
#define MAX_CONNECTIONS 1024
#define MAX_REQUEST 16384

#define RECORD                                                                                                         \
    "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\" llama\"}}],"                    \
    "\"created\":1795179457,\"id\":\"chatcmpl-l9BuIRMK094EmZwJqpg6KK30tD3AvUzm\",\"model\":\"bench\","                 \
    "\"system_fingerprint\":\"b0-bench\",\"object\":\"chat.completion.chunk\"}\n\n"
#define DONE "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
#define ANSWER                                                                                                         \
    "{\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello "   \
    "there\"}}],\"created\":1795179457,\"model\":\"bench\",\"object\":\"chat.completion\",\"usage\":"                  \
    "{\"completion_tokens\":2,\"prompt_tokens\":9,\"total_tokens\":11},\"id\":\"chatcmpl-bench\"}"
#define HEALTH "{\"status\":\"ok\"}"
#define READY                                                                                                          \
    "cmd_child_to_router:state:{\"state\":\"ready\",\"payload\":{\"id\":\"bench\",\"aliases\":[],\"tags\":[],"         \
    "\"object\":\"model\",\"architecture\":{\"input_modalities\":[\"text\"],\"output_modalities\":[\"text\"]},"        \
    "\"created\":0,\"owned_by\":\"llamacpp\",\"meta\":{}}}\n"

struct connection {
    char request[MAX_REQUEST];
    int used, close_after, chunks_left;
    long long due; /* microseconds */
};

static struct pollfd polled[MAX_CONNECTIONS];
static struct connection *state[MAX_CONNECTIONS];
static int count = 0;
static char chunk[1024];
static int chunk_size;

static long long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void on_signal(int number) {
    (void)number;
    _exit(0);
}

static void put(int fd, const char *data, int size) {
    if (send(fd, data, size, 0) != size && errno == EAGAIN) {
        fprintf(stderr, "upstream: a reader is too slow for this bench\n");
        exit(1);
    }
}

static void drop(int i) {
    close(polled[i].fd);
    free(state[i]);
    polled[i] = polled[--count];
    state[i] = state[count];
}

static void put_json(int fd, const char *body) {
    char out[1024];
    int size = snprintf(out, sizeof out,
                        "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n"
                        "Content-Length: %zu\r\n\r\n%s",
                        strlen(body), body);
    put(fd, out, size);
}

/* One complete request sits in the buffer: answer it, or begin its stream. */
static void answer(int i, char *head_end, long body_size) {
    struct connection *c = state[i];
    char *body = head_end + 4;
    c->close_after = strcasestr(c->request, "\r\nconnection: close\r\n") != NULL;
    body[body_size] = 0;
    if (strncmp(c->request, "GET /health", 11) == 0) {
        put_json(polled[i].fd, HEALTH);
    } else if (strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true")) {
        static const char head[] = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nX-Accel-Buffering: no\r\n"
                                   "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        put(polled[i].fd, head, sizeof head - 1);
        c->chunks_left = CHUNKS;
        c->due = now_us();
    } else {
        put_json(polled[i].fd, ANSWER);
    }
    c->used = 0;
}

/* Read what is there; 0 when the connection is over. */
static int receive(int i) {
    struct connection *c = state[i];
    int got = recv(polled[i].fd, c->request + c->used, MAX_REQUEST - 1 - c->used, 0);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    c->used += got;
    c->request[c->used] = 0;
    char *end = strstr(c->request, "\r\n\r\n");
    if (!end) return c->used < MAX_REQUEST - 1;
    *end = 0;
    char *length = strcasestr(c->request, "\r\ncontent-length:");
    *end = '\r';
    long size = length ? strtol(length + 17, NULL, 10) : 0;
    if (end + 4 - c->request + size > c->used) return c->used < MAX_REQUEST - 1;
    answer(i, end, size);
    return c->chunks_left > 0 || !c->close_after;
}

/* Send what is due; 0 when the connection is over. */
static int advance(int i, long long now) {
    struct connection *c = state[i];
    while (c->chunks_left > 0 && c->due <= now) {
        put(polled[i].fd, chunk, chunk_size);
        c->due += INTERVAL_MS * 1000;
        if (--c->chunks_left == 0) {
            put(polled[i].fd, DONE, sizeof DONE - 1);
            return !c->close_after;
        }
    }
    return 1;
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 512)) {
        perror("upstream: bind");
        exit(1);
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void take(int listener) {
    int fd, one = 1;
    while (count < MAX_CONNECTIONS && (fd = accept(listener, NULL, NULL)) >= 0) {
        fcntl(fd, F_SETFL, O_NONBLOCK);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        polled[count] = (struct pollfd){.fd = fd, .events = POLLIN};
        state[count++] = calloc(1, sizeof(struct connection));
    }
}

static void obey_router(void) {
    char line[4096];
    int got = read(0, line, sizeof line - 1);
    if (got <= 0) _exit(1);
    line[got] = 0;
    if (strstr(line, "cmd_router_to_child:exit")) _exit(0);
}

static int wait_ms(long long now) {
    long long first = now + 1000000;
    for (int i = 2; i < count; i++)
        if (state[i]->chunks_left > 0 && state[i]->due < first) first = state[i]->due;
    return first <= now ? 0 : (int)((first - now + 999) / 1000);
}

int main(int argc, char **argv) {
    int port = 8080, is_child = getenv("LLAMA_SERVER_ROUTER_PORT") != NULL;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--port") == 0) port = atoi(argv[i + 1]);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    chunk_size = snprintf(chunk, sizeof chunk, "%zx\r\n%s\r\n", sizeof RECORD - 1, RECORD);
    polled[count++] = (struct pollfd){.fd = listen_on(port), .events = POLLIN};
    polled[count++] = (struct pollfd){.fd = is_child ? 0 : -1, .events = POLLIN};
    if (is_child) {
        fputs(READY, stdout);
        fflush(stdout);
    }
    for (;;) {
        poll(polled, count, wait_ms(now_us()));
        if (polled[0].revents) take(polled[0].fd);
        if (polled[1].revents) obey_router();
        long long now = now_us();
        for (int i = count - 1; i >= 2; i--)
            if ((polled[i].revents && !receive(i)) || !advance(i, now)) drop(i);
    }
}
