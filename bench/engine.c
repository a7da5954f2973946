/* The engine of the bench: a model server that costs next to nothing, so that the cost of a relay can be seen.

   engine --port N. One thread, epoll, a timer. GET /health and /v1/models answer at once. A POST is
   answered as the first bytes of its body ask; the rest of them is read and thrown away:

     "records":R   a stream of R records and [DONE], each in a chunk of its own; 0 or absent: JSON of 1 KiB
     "pace_us":P   the time from one record to the next
     "record_bytes":B  how long a record is, about (short without it)
     "slot":S,"of":N   where in its pace the stream speaks: record k at (k + S/N) * P; without them all speak at once
     "in_text":1   the mark of a record is in its text, where a translator keeps it: " llama at=TTT...NNN"
     "delay_us":D  how long an answer of JSON takes

   Each record carries "at":"TTTTTTTTTTTTTTTTTTTNNNNNNN": nanoseconds of CLOCK_MONOTONIC at its sending, its number. */

#define _GNU_SOURCE
#include <signal.h>
#include <sys/timerfd.h>

#include "http.h"

#define ASKED_MAX 8192 /* a translated request has its orders behind its messages */
#define RECORD_MAX 16384
#define OUT_MAX (RECORD_MAX + 2048)
#define CONNECTIONS_MAX 65536

struct connection {
    struct message request;
    char asked[ASKED_MAX];
    char out[OUT_MAX];
    int fd, asked_used, out_used, heap_at, closing, in_text;
    long long records, sent, pace, due, padding;
};

static struct connection *heap[CONNECTIONS_MAX];
static int waiting, poller, timer;

static const char TAIL[] = "\"},\"finish_reason\":null}],\"created\":1795179457,\"model\":\"bench\",\"object\":"
                           "\"chat.completion.chunk\",\"system_fingerprint\":\"b0\",\"id\":\"chatcmpl-bench\"}\n\n";
static const char USAGE[] = "data: {\"choices\":[],\"created\":1795179457,\"model\":\"bench\",\"object\":"
                            "\"chat.completion.chunk\",\"id\":\"chatcmpl-bench\",\"usage\":{\"completion_tokens\":%lld,"
                            "\"prompt_tokens\":9,\"total_tokens\":%lld}}\n\n";

/* ---- the next that is due: a heap by time ----------------------------------------------------------------------- */

static void put(int at, struct connection *c) {
    heap[at] = c;
    c->heap_at = at;
}

static void settle(int at) {
    struct connection *c = heap[at];
    while (at && heap[(at - 1) / 2]->due > c->due) {
        put(at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (int child; (child = 2 * at + 1) < waiting; at = child) {
        if (child + 1 < waiting && heap[child + 1]->due < heap[child]->due) child++;
        if (heap[child]->due >= c->due) break;
        put(at, heap[child]);
    }
    put(at, c);
}

static void wait_for(struct connection *c, long long due) {
    c->due = due;
    if (c->heap_at < 0) put(waiting++, c);
    settle(c->heap_at);
}

static void forget(struct connection *c) {
    if (c->heap_at < 0) return;
    int at = c->heap_at;
    c->heap_at = -1;
    if (at == --waiting) return;
    put(at, heap[waiting]);
    settle(at);
}

static void arm(void) {
    static long long armed;
    long long due = waiting ? heap[0]->due : 0;
    if (due == armed) return;
    struct itimerspec when = {.it_value = {due / 1000000000, due % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
    armed = due;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

static void drop(struct connection *c) {
    forget(c);
    close(c->fd);
    free(c);
}

/* Bytes that the socket does not take wait until it does; the stream waits with them. 0 when the reader has left. */
static int say(struct connection *c, const char *data, int size) {
    int sent = send(c->fd, data, size, MSG_NOSIGNAL);
    if (sent == size) {
        if (c->closing && c->heap_at < 0) shutdown(c->fd, SHUT_WR);
        return 1;
    }
    if (sent < 0 && errno != EAGAIN) return 0;
    c->out_used = size - (sent < 0 ? 0 : sent);
    memcpy(c->out, data + size - c->out_used, c->out_used);
    watch(poller, EPOLL_CTL_MOD, c->fd, EPOLLIN | EPOLLOUT, c);
    return 1;
}

static int say_json(struct connection *c, const char *body) {
    char out[2048];
    int size = snprintf(out, sizeof out,
                        "HTTP/1.1 200 OK\r\nServer: bench\r\nContent-Type: application/json; charset=utf-8\r\n"
                        "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    return say(c, out, size);
}

static const char *answer_of_1_kib(void) {
    static char body[1025];
    if (body[0]) return body;
    const char *start = "{\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"message\":{\"role\":\"assistant\","
                        "\"content\":\"";
    const char *end = "\"}}],\"created\":1795179457,\"model\":\"bench\",\"object\":\"chat.completion\",\"usage\":{"
                      "\"completion_tokens\":200,\"prompt_tokens\":9,\"total_tokens\":209},\"id\":\"chatcmpl-bench\"}";
    int from = sprintf(body, "%s", start), to = 1024 - (int)strlen(end);
    for (int i = from; i < to; i++) body[i] = " llama"[(i - from) % 6];
    strcpy(body + to, end);
    return body;
}

static int chunk(char *out, const char *record, int size) {
    int used = sprintf(out, "%x\r\n", size);
    memcpy(out + used, record, size);
    memcpy(out + used + size, "\r\n", 2);
    return used + size + 2;
}

static int record(char *out, const struct connection *c) {
    char text[OUT_MAX];
    int size = sprintf(text, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" llama");
    for (int i = 0; i < c->padding; i++) text[size++] = " and llama"[i % 10];
    const char *mark = c->in_text ? " at=" : "\",\"at\":\"";
    size += sprintf(text + size, "%s%019lld%07lld%s", mark, now_ns(), c->sent, TAIL);
    return chunk(out, text, size);
}

static int last_words(char *out, const struct connection *c) {
    char text[512];
    int used = chunk(out, text, sprintf(text, USAGE, c->records, c->records + 9));
    return used + sprintf(out + used, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

/* Send the record that is due; 0 when the reader has left. */
static int advance(struct connection *c) {
    char out[OUT_MAX];
    forget(c);
    if (c->records == 0) return say_json(c, answer_of_1_kib());
    int used = record(out, c);
    if (++c->sent == c->records) {
        used += last_words(out + used, c);
        c->records = 0;
    } else {
        wait_for(c, c->due + c->pace);
    }
    return say(c, out, used);
}

static long long number(const struct connection *c, const char *name) {
    const char *found = strstr(c->asked, name);
    return found ? atoll(found + strlen(name)) : 0;
}

/* The first record leaves with the head; the others keep to the grid of their pace, which all streams share. */
static int begin_stream(struct connection *c) {
    static const char head[] = "HTTP/1.1 200 OK\r\nServer: bench\r\nContent-Type: text/event-stream\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    char out[OUT_MAX];
    long long slot = number(c, "\"slot\":"), of = number(c, "\"of\":"), now = now_ns();
    c->pace = number(c, "\"pace_us\":") * 1000;
    c->padding = number(c, "\"record_bytes\":");
    c->in_text = number(c, "\"in_text\":");
    if (c->padding > RECORD_MAX - 512) c->padding = RECORD_MAX - 512;
    c->sent = 0;
    memcpy(out, head, sizeof head - 1);
    int used = sizeof head - 1 + record(out + sizeof head - 1, c);
    if (++c->sent == c->records) {
        used += last_words(out + used, c);
        c->records = 0;
    } else {
        long long due = now - now % (c->pace + !c->pace) + (of ? slot * c->pace / of : 0);
        while (due < now + c->pace / 2) due += c->pace + !c->pace;
        wait_for(c, due);
    }
    return say(c, out, used);
}

static int answer(struct connection *c) {
    c->asked[c->asked_used] = 0;
    c->closing = says_close(&c->request);
    if (strncmp(c->request.head, "GET /v1/models", 14) == 0)
        return say_json(c, "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":0}]}");
    if (strncmp(c->request.head, "POST ", 5)) return say_json(c, "{\"status\":\"ok\"}");
    c->records = number(c, "\"records\":");
    if (c->records) return begin_stream(c);
    long long delay = number(c, "\"delay_us\":") * 1000;
    if (!delay) return say_json(c, answer_of_1_kib());
    wait_for(c, now_ns() + delay);
    return 1;
}

/* ---- connections ------------------------------------------------------------------------------------------------ */

static void keep_start(void *owner, const char *data, long size) {
    struct connection *c = owner;
    long room = ASKED_MAX - 1 - c->asked_used;
    if (size > room) size = room;
    memcpy(c->asked + c->asked_used, data, size);
    c->asked_used += size;
}

/* 0 when the connection is over. */
static int receive(struct connection *c) {
    static char data[BUFFER];
    long got = recv(c->fd, data, sizeof data, 0), at = 0;
    if (got <= 0) return got < 0 && errno == EAGAIN;
    while (at < got) {
        at += feed(&c->request, data + at, got - at, 1, keep_start, c);
        if (c->request.stage == BROKEN) return 0;
        if (c->request.stage != DONE) continue;
        if (!answer(c)) return 0;
        next_message(&c->request);
        c->asked_used = 0;
    }
    return 1;
}

static int flush(struct connection *c) {
    int left = c->out_used;
    c->out_used = 0;
    watch(poller, EPOLL_CTL_MOD, c->fd, EPOLLIN, c);
    return say(c, memmove(c->out, c->out, left), left);
}

static void take_all(int listener) {
    int fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        if (fd >= CONNECTIONS_MAX) {
            close(fd);
            continue;
        }
        struct connection *c = calloc(1, sizeof *c);
        unblock(fd);
        c->fd = fd;
        c->heap_at = -1;
        watch(poller, EPOLL_CTL_ADD, fd, EPOLLIN, c);
    }
}

static void send_due(void) {
    unsigned long long rung;
    if (read(timer, &rung, sizeof rung) < 0) return;
    for (long long now = now_ns(); waiting && heap[0]->due <= now;) {
        struct connection *c = heap[0];
        if (c->out_used) {
            wait_for(c, now + 50000000); /* its reader is slow */
        } else if (!advance(c)) {
            drop(c);
        }
    }
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) fail("engine: listen");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

int main(int argc, char **argv) {
    int port = 0;
    if (argc > 1 && strcmp(argv[argc - 1], "--help") == 0) /* what the program asks before it keeps contexts */
        return puts("--slot-save-path PATH\n--no-cache-idle-slots\n--slot-prompt-similarity S"), 0;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--port") == 0) port = atoi(argv[i + 1]);
    if (!port) return fprintf(stderr, "engine --port N\n"), 2; /* somebody asks for devices or a version */
    signal(SIGPIPE, SIG_IGN);
    int listener = listen_on(port);
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(poller, EPOLL_CTL_ADD, listener, EPOLLIN, &listener);
    watch(poller, EPOLL_CTL_ADD, timer, EPOLLIN, &timer);
    for (;;) {
        struct epoll_event events[256];
        int ready = epoll_wait(poller, events, 256, -1), rung = 0;
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if ((void *)c == &listener) {
                take_all(listener);
            } else if ((void *)c == &timer) {
                rung = 1; /* last: sending may drop a connection that has an event here, too */
            } else if ((events[i].events & EPOLLOUT && !flush(c)) || (events[i].events & ~EPOLLOUT && !receive(c))) {
                drop(c);
            }
        }
        if (rung) send_due();
        arm();
    }
}
