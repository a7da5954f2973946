/* Shared by both ends of the bench: the clock, sockets, a reader of HTTP/1.1 messages that is fed as bytes come. */

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEAD_MAX 4096
#define BUFFER (1 << 18)

enum stage { HEAD, SIZED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE, DONE, BROKEN };

struct message {
    enum stage stage;
    int head_used, line_used;
    long long left; /* bytes of the body, or of its chunk */
    char head[HEAD_MAX];
};

typedef void body_part(void *owner, const char *data, long size);

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void unblock(int fd) {
    int one = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void watch(int poller, int operation, int fd, int events, void *data) {
    struct epoll_event event = {.events = events, .data.ptr = data};
    if (epoll_ctl(poller, operation, fd, &event)) fail("epoll_ctl");
}

static void next_message(struct message *m) {
    m->stage = HEAD;
    m->head_used = m->line_used = 0;
    m->left = 0;
}

/* The value of a header, NULL without it; `name` as "\r\nname:". The head ends with a zero. */
static const char *header(const struct message *m, const char *name) {
    const char *found = strcasestr(m->head, name);
    if (!found) return NULL;
    found += strlen(name);
    return found + strspn(found, " ");
}

static int says_close(const struct message *m) {
    const char *value = header(m, "\r\nconnection:");
    return value && strncasecmp(value, "close", 5) == 0;
}

static void understand_head(struct message *m, int is_request) {
    const char *length = header(m, "\r\ncontent-length:"), *coding = header(m, "\r\ntransfer-encoding:");
    if (coding && strncasecmp(coding, "chunked", 7) == 0) {
        m->stage = CHUNK_SIZE;
    } else if (length) {
        m->left = strtoll(length, NULL, 10);
        m->stage = m->left ? SIZED : DONE;
    } else {
        m->stage = is_request ? DONE : UNTIL_CLOSE;
    }
}

/* The bytes of the head; how many were taken. */
static long take_head(struct message *m, const char *data, long size, int is_request) {
    long room = HEAD_MAX - 1 - m->head_used, taken = size < room ? size : room;
    int before = m->head_used < 3 ? 0 : m->head_used - 3;
    memcpy(m->head + m->head_used, data, taken);
    char *end = memmem(m->head + before, m->head_used + taken - before, "\r\n\r\n", 4);
    if (!end) {
        m->head_used += taken;
        if (m->head_used == HEAD_MAX - 1) m->stage = BROKEN;
        return taken;
    }
    end[2] = 0;
    taken = end + 4 - m->head - m->head_used;
    m->head_used += taken;
    understand_head(m, is_request);
    return taken;
}

/* One byte of the framing between chunks. */
static void take_framing(struct message *m, char byte) {
    if (m->stage == CHUNK_SIZE && byte != '\n') {
        const char *digits = "0123456789abcdef", *digit = byte ? strchr(digits, byte | 32) : NULL;
        if (digit && m->line_used == 0) m->left = m->left * 16 + (digit - digits);
        if (!digit) m->line_used = 1; /* an extension, or the carriage return */
    } else if (byte == '\n') {
        if (m->stage == CHUNK_SIZE) {
            m->stage = m->left ? CHUNK : TRAILER;
        } else if (m->stage == CHUNK_END) {
            m->stage = CHUNK_SIZE;
        } else if (m->line_used == 0) {
            m->stage = DONE;
        }
        m->line_used = 0;
    } else if (m->stage == TRAILER && byte != '\r') {
        m->line_used = 1;
    }
}

/* Take bytes up to the end of one message; how many were taken. The stage tells what is waited for next. */
static long feed(struct message *m, const char *data, long size, int is_request, body_part *part, void *owner) {
    long at = 0;
    while (at < size && m->stage < DONE) {
        long rest = size - at;
        if (m->stage == HEAD) {
            at += take_head(m, data + at, rest, is_request);
        } else if (m->stage == UNTIL_CLOSE) {
            part(owner, data + at, rest);
            at = size;
        } else if (m->stage == SIZED || m->stage == CHUNK) {
            long taken = rest < m->left ? rest : m->left;
            part(owner, data + at, taken);
            at += taken;
            m->left -= taken;
            if (m->left == 0) m->stage = m->stage == SIZED ? DONE : CHUNK_END;
        } else {
            take_framing(m, data[at++]);
        }
    }
    return at;
}
