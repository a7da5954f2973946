/* The clients of the bench. One thread, epoll; all times are of CLOCK_MONOTONIC. Prints one line of JSON.

   load streams --port N --streams N --pace-us P --seconds T
       So many streams begin at the same instant. A record is late by the time from its sending by the engine to its
       arrival here; counted from a second (or half of T) after the start. Prints "speaking" when every stream has said
       something or has failed.
       --over-us U        begin one by one over so long
       --burst            all streams speak at the same instant; else one after the other
       --key              a distinct X-Conversation-Id for each
       --post BYTES       one more client posts so much every half second
       --record-bytes B   how long a record is, about
       --dialect D        messages or responses: the clients of that API
       --slow             nobody reads on after the first words until T is over
   load json --port N --connections C --seconds T
       C clients ask again and again.
       --rate R           in place of C: R requests a second, each at its moment, even while others wait; the times
                          count from those moments
       --new              a connection for each request
       --vary             each body is longer or shorter than the one before it
       --body BYTES, --delay-us D   of a request; of the engine until it answers
       --most N           no more requests than these
       --get              GET in place of POST
   Both: --header 'NAME: VALUE' (may be repeated), --say TEXT (how the prompt begins), --path PATH. */

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/timerfd.h>

#include "http.h"

#define TEXT_BYTES 2048
#define PATIENCE_NS 20000000000LL
#define POST_EVERY_NS 500000000LL
#define OPEN_MAX 2048
#define PIECE 131072

static struct {
    int port, streams, burst, key, slow, fresh, get, vary, connections;
    long long pace, over, records, record_bytes, post, body, delay, most;
    double seconds, rate;
    const char *path, *words, *list, *orders, *mark;
    char headers[1024];
} want = {.path = "/v1/chat/completions", .words = "", .list = "messages", .orders = "", .mark = "\"at\":\"", .body = TEXT_BYTES, .most = INT64_MAX};

struct client {
    struct message answer;
    char *request;
    long size, sent;
    long long began, got;
    int fd, matched, busy, watches_out, is_post, stamp_used, spoke, over;
    char stamp[27];
};

struct times {
    float *ms;
    long used, room;
};

static struct times firsts, lates, whole, posts;
static struct client *clients;
static int poller, last_status;
static long errors, disordered, records_got, streams_left, silent_left;
static long long start, settled;
static char first_error[160];

static void note(struct times *t, long long ns) {
    if (t->used == t->room) {
        t->room = t->room ? t->room * 2 : 65536;
        if (!(t->ms = realloc(t->ms, t->room * sizeof *t->ms))) fail("load: memory");
    }
    t->ms[t->used++] = ns / 1e6;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double at(const struct times *t, double share) {
    long place = t->used * share;
    return t->ms[place < t->used ? place : t->used - 1];
}

static void print_times(const char *name, struct times *t) {
    static const struct {
        const char *name;
        double share;
    } parts[] = {{"p50", .5}, {"p95", .95}, {"p99", .99}, {"max", 1}};
    if (!t->used) return;
    qsort(t->ms, t->used, sizeof *t->ms, by_size);
    for (int i = 0; i < 4; i++) printf(", \"%s_%s\": %.4f", name, parts[i].name, at(t, parts[i].share));
}

/* ---- requests to send ------------------------------------------------------------------------------------------- */

static const char QUESTION[] = "What do llamas hum about? ";
static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* A chat of so many bytes; the engine's orders come first. A long one holds an image: base64, hard to compress. */
static char *chat(long bytes, const char *orders) {
    int is_long = bytes > 8192;
    const char *end = is_long ? "\"}}]}]}" : "\"}]}";
    char *body = malloc(bytes + 2048);
    if (!body) fail("load: memory");
    long used = sprintf(body, "{\"model\":\"bench\",%s%s\"%s\":[{\"role\":\"user\",\"content\":", want.orders, orders,
                        want.list);
    const char *short_start = "\"%s", *long_start = "[{\"type\":\"text\",\"text\":\"%s\"},{\"type\":\"image_url\","
                                                   "\"image_url\":{\"url\":\"data:image/png;base64,";
    used += sprintf(body + used, is_long ? long_start : short_start, want.words);
    unsigned long long random = 88172645463325252ULL;
    for (long last = bytes - strlen(end); used < last; used++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        body[used] = is_long ? LETTERS[random >> 58] : QUESTION[used % (sizeof QUESTION - 1)];
    }
    strcpy(body + used, end);
    return body;
}

/* The whole request; `id` is a header more, or nothing. Takes the body. */
static char *request_with(char *body, const char *id, long *size) {
    long length = strlen(body);
    char *request = malloc(length + 4096);
    if (!request) fail("load: memory");
    long head = snprintf(request, 4096,
                         "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: bench\r\nAccept: */*\r\n"
                         "Content-Type: application/json\r\n%s%s%sContent-Length: %ld\r\n\r\n",
                         want.path, want.port, want.fresh ? "Connection: close\r\n" : "", want.headers, id, length);
    memcpy(request + head, body, length);
    free(body);
    *size = head + length;
    return request;
}

static char *ask_of_stream(int number, long *size) {
    char orders[200], slot[64] = "", id[64] = "";
    if (!want.burst) sprintf(slot, "\"slot\":%d,\"of\":%d,", number, want.streams);
    if (want.key) sprintf(id, "X-Conversation-Id: bench-%d-%d\r\n", (int)getpid(), number);
    sprintf(orders, "\"records\":%lld,\"pace_us\":%lld,\"record_bytes\":%lld,%s\"stream\":true,", want.records,
            want.pace, want.record_bytes, slot);
    return request_with(chat(TEXT_BYTES, orders), id, size);
}

static char *ask_of_json(long *size, long more) {
    char orders[64] = "", *request;
    if (want.delay) sprintf(orders, "\"delay_us\":%lld,", want.delay);
    if (!want.get) return request_with(chat(want.body + more, orders), "", size);
    *size = asprintf(&request, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\n%s%s\r\n", want.path, want.port,
                     want.fresh ? "Connection: close\r\n" : "", want.headers);
    return request;
}

/* ---- the clock -------------------------------------------------------------------------------------------------- */

static int timer;
static struct client alarm_clock; /* stands for the timer among the clients */

static void wake_at(long long due) {
    struct itimerspec when = {.it_value = {due / 1000000000, due % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void woken(void) {
    unsigned long long times;
    if (read(timer, &times, sizeof times) < 0 && errno != EAGAIN) fail("load: timer");
}

/* ---- one client ------------------------------------------------------------------------------------------------- */

static void hang_up(struct client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void went_wrong(struct client *c, const char *what) {
    if (!errors++) snprintf(first_error, sizeof first_error, "%s (status %d)", what, last_status);
    c->busy = 0;
    hang_up(c);
}

static void dial(struct client *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(want.port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int small = 4096;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0) fail("load: socket");
    if (want.slow) setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    unblock(c->fd);
    int failed = connect(c->fd, (struct sockaddr *)&to, sizeof to);
    if (failed && errno != EINPROGRESS) return went_wrong(c, strerror(errno));
    watch(poller, EPOLL_CTL_ADD, c->fd, EPOLLIN, c);
    c->watches_out = 0;
}

static void watch_out(struct client *c, int also) {
    if (c->watches_out != also) watch(poller, EPOLL_CTL_MOD, c->fd, also ? EPOLLIN | EPOLLOUT : EPOLLIN, c);
    c->watches_out = also;
}

/* A piece at a time: a long body must not keep the others' answers waiting here. */
static void push(struct client *c) {
    long left = c->size - c->sent, sent = send(c->fd, c->request + c->sent, left < PIECE ? left : PIECE, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != ENOTCONN) return went_wrong(c, strerror(errno));
    if (sent > 0) c->sent += sent;
    watch_out(c, c->sent < c->size);
}

static void ask(struct client *c, long long began) {
    next_message(&c->answer);
    c->began = began;
    c->sent = c->got = c->matched = 0;
    c->busy = 1;
    if (c->fd < 0) dial(c);
    if (c->fd >= 0) push(c); /* over loopback connecting is done already; else it is pushed when it is */
}

static void no_longer_silent(void) {
    if (--silent_left) return;
    puts("speaking");
    fflush(stdout);
}

static void read_stamp(struct client *c, long long now) {
    char number[8];
    memcpy(number, c->stamp + 19, 7);
    number[7] = 0;
    disordered += atoll(number) != c->got;
    c->stamp[19] = 0;
    c->got++;
    records_got++;
    if (now >= settled) note(&lates, now - atoll(c->stamp));
}

/* The body of a stream: a stamp follows each mark. */
static void take_records(void *owner, const char *data, long size) {
    const char *mark = want.mark;
    int length = strlen(mark);
    struct client *c = owner;
    long long now = now_ns();
    if (!c->spoke) {
        c->spoke = 1;
        note(&firsts, now - c->began);
        if (want.slow) watch(poller, EPOLL_CTL_MOD, c->fd, 0, c); /* until the time is over */
        no_longer_silent();
    }
    for (long i = 0; i < size; i++) {
        if (c->matched == length) {
            c->stamp[c->stamp_used++] = data[i];
            if (c->stamp_used < 26) continue;
            read_stamp(c, now);
            c->stamp_used = c->matched = 0;
        } else {
            c->matched = data[i] == mark[c->matched] ? c->matched + 1 : data[i] == mark[0];
        }
    }
}

static void count_bytes(void *owner, const char *data, long size) {
    (void)data;
    ((struct client *)owner)->got += size;
}

/* Read all that is there; 1 when the answer is whole. */
static int pull(struct client *c, body_part *part) {
    static char data[BUFFER];
    long got = recv(c->fd, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) {
        if (c->busy && c->answer.stage == UNTIL_CLOSE) return hang_up(c), 1;
        if (c->busy) went_wrong(c, got ? strerror(errno) : "the answer broke off");
        else hang_up(c);
        return 0;
    }
    feed(&c->answer, data, got, 0, part, c);
    last_status = c->answer.stage == HEAD ? 0 : atoi(c->answer.head + 9);
    if (c->answer.stage == BROKEN || (c->answer.stage != HEAD && last_status != 200)) {
        went_wrong(c, "an answer that is not 200");
        return 0;
    }
    if (c->answer.stage != DONE) return 0;
    if (want.fresh || says_close(&c->answer)) hang_up(c);
    return 1;
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

static void look_whether_over(struct client *c) {
    if (c->busy || c->over) return;
    if (!c->spoke) no_longer_silent();
    c->over = 1;
    streams_left--;
    hang_up(c);
}

static void stream_event(struct client *c) {
    if (pull(c, take_records)) c->busy = 0;
}

static void post_event(struct client *c) {
    if (pull(c, count_bytes)) {
        c->busy = 0;
        note(&posts, now_ns() - c->began);
    }
}

static void heed_streams(int wait) {
    struct epoll_event events[512];
    int ready = epoll_wait(poller, events, 512, wait);
    for (int i = 0; i < ready; i++) {
        struct client *c = events[i].data.ptr;
        if (c == &alarm_clock) {
            woken();
            continue;
        }
        if (events[i].events & EPOLLOUT && c->busy) push(c);
        if (c->fd >= 0 && events[i].events & ~EPOLLOUT) c->is_post ? post_event(c) : stream_event(c);
        if (!c->is_post) look_whether_over(c);
    }
}

static void prepare_streams(void) {
    clients = calloc(want.streams + 1, sizeof *clients);
    for (int i = 0; i <= want.streams; i++) {
        struct client *c = &clients[i];
        c->fd = -1;
        c->is_post = i == want.streams;
        if (!c->is_post) c->request = ask_of_stream(i, &c->size);
        else if (want.post) c->request = request_with(chat(want.post, ""), "", &c->size);
    }
    streams_left = silent_left = want.streams;
}

/* Answers are heeded between two questions, so that none waits for the asking of the others. */
static void begin_all(void) {
    for (int i = 0; i < want.streams; i++) {
        long long due = start + i * want.over * 1000 / want.streams;
        while (now_ns() < due) {
            wake_at(due);
            heed_streams(1000);
        }
        ask(&clients[i], now_ns());
        look_whether_over(&clients[i]);
        heed_streams(0);
    }
}

static void read_on(void) {
    for (int i = 0; i < want.streams; i++)
        if (clients[i].fd >= 0) watch(poller, EPOLL_CTL_MOD, clients[i].fd, EPOLLIN, &clients[i]);
}

static void run_streams(void) {
    prepare_streams();
    struct client *poster = clients + want.streams;
    start = now_ns();
    settled = start + (want.seconds < 2 ? (long long)(want.seconds * 5e8) : 1000000000LL);
    long long next_post = want.post ? settled : INT64_MAX;
    long long end = start + want.records * want.pace * 1000 + PATIENCE_NS;
    begin_all();
    long long awake = want.slow ? start + (long long)(want.seconds * 1e9) : INT64_MAX;
    for (long long now; streams_left && (now = now_ns()) < end;) {
        if (now >= awake) {
            read_on();
            awake = INT64_MAX;
        }
        if (now >= next_post) {
            if (!poster->busy) ask(poster, now);
            next_post += POST_EVERY_NS;
        }
        heed_streams(want.post ? (int)((next_post - now) / 1000000) + 1 : want.slow ? 100 : 1000);
    }
    errors += streams_left;
    long long lost = want.streams * want.records - records_got;
    printf("{\"chunks\": %ld, \"lost\": %lld, \"disordered\": %ld, \"errors\": %ld, \"first_error\": \"%s\"",
           records_got, lost, disordered, errors, first_error);
    print_times("first", &firsts);
    print_times("late", &lates);
    print_times("post", &posts);
    puts("}");
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

#define LENGTHS 64
static char *requests[LENGTHS];
static long sizes[LENGTHS], asked, answered;
static long long last_answer;

static int may_ask(long long now) {
    return asked < want.most && now < start + (long long)(want.seconds * 1e9);
}

/* The first that waits for nothing, so that no more connections are opened than are needed. */
static struct client *idle_client(void) {
    for (int i = 0; i < want.connections; i++)
        if (!clients[i].busy) return &clients[i];
    return NULL;
}

static void json_event(struct client *c) {
    int was_busy = c->busy, whole_answer = pull(c, count_bytes);
    if (!was_busy || (!whole_answer && c->busy)) return;
    long long now = now_ns();
    if (whole_answer) {
        note(&whole, now - c->began);
        last_answer = now;
        answered++;
    }
    c->busy = 0;
    if (!want.rate && may_ask(now)) {
        c->request = requests[asked % LENGTHS], c->size = sizes[asked % LENGTHS];
        asked++;
        ask(c, now);
    }
}

/* Ask all that is due, as long as a client is free. 0 when everything was asked. */
static int ask_what_is_due(void) {
    for (;;) {
        long long now = now_ns(), due = start + (long long)(asked * 1e9 / want.rate);
        struct client *c;
        if (due >= start + (long long)(want.seconds * 1e9) || asked >= want.most) return 0;
        if (due > now) return wake_at(due), 1;
        if (!(c = idle_client())) return wake_at(now + 1000000), 1;
        asked++;
        ask(c, due);
    }
}

static int anybody_busy(void) {
    for (int i = 0; i < want.connections; i++)
        if (clients[i].busy) return 1;
    return 0;
}

static void heed_answers(void) {
    struct epoll_event events[512];
    int ready = epoll_wait(poller, events, 512, 1000);
    for (int i = 0; i < ready; i++) {
        struct client *c = events[i].data.ptr;
        if (c == &alarm_clock) {
            woken();
            continue;
        }
        if (events[i].events & EPOLLOUT && c->busy) push(c);
        if (c->fd >= 0 && events[i].events & ~EPOLLOUT) json_event(c);
    }
}

static void run_json(void) {
    for (int i = 0; i < LENGTHS; i++) requests[i] = ask_of_json(&sizes[i], want.vary ? i * 7 % 64 - 32 : 0);
    if (want.rate) want.connections = OPEN_MAX;
    clients = calloc(want.connections, sizeof *clients);
    for (int i = 0; i < want.connections; i++) clients[i] = (struct client){.fd = -1, .request = requests[0], .size = sizes[0]};
    start = now_ns();
    long long patience = start + (long long)(want.seconds * 1e9) + PATIENCE_NS;
    for (int i = 0; !want.rate && i < want.connections && may_ask(start); i++) {
        asked++;
        ask(&clients[i], now_ns());
    }
    while (now_ns() < patience) {
        int more = want.rate ? ask_what_is_due() : may_ask(now_ns());
        if (!more && !anybody_busy()) break;
        heed_answers();
    }
    for (int i = 0; i < want.connections; i++) errors += clients[i].busy;
    double seconds = (last_answer - start) / 1e9;
    printf("{\"answers\": %ld, \"per_second\": %.2f, \"errors\": %ld, \"first_error\": \"%s\"", answered,
           answered ? answered / seconds : 0, errors, first_error);
    print_times("took", &whole);
    puts("}");
}

/* ---- options ---------------------------------------------------------------------------------------------------- */

/* Of the events that repeat a text, only those that bring it have such a mark. */
static int speak(const char *dialect) {
    int is_responses = strcmp(dialect, "responses") == 0;
    if (!is_responses && strcmp(dialect, "messages")) return -1;
    want.path = is_responses ? "/v1/responses" : "/v1/messages";
    want.list = is_responses ? "input" : "messages";
    want.mark = is_responses ? "\"delta\":\" llama at=" : "\"text\":\" llama at=";
    want.orders = "\"in_text\":1,";
    return 1;
}

static int take_option(const char *name, const char *value) {
#define IS(word) (strcmp(name, word) == 0)
    if (IS("--burst")) return want.burst = 1, 0;
    if (IS("--key")) return want.key = 1, 0;
    if (IS("--slow")) return want.slow = 1, 0;
    if (IS("--new")) return want.fresh = 1, 0;
    if (IS("--get")) return want.get = 1, 0;
    if (IS("--vary")) return want.vary = 1, 0;
    if (!value) return -1;
    if (IS("--port")) want.port = atoi(value);
    else if (IS("--streams")) want.streams = atoi(value);
    else if (IS("--connections")) want.connections = atoi(value);
    else if (IS("--pace-us")) want.pace = atoll(value);
    else if (IS("--record-bytes")) want.record_bytes = atoll(value);
    else if (IS("--over-us")) want.over = atoll(value);
    else if (IS("--post")) want.post = atoll(value);
    else if (IS("--body")) want.body = atoll(value);
    else if (IS("--delay-us")) want.delay = atoll(value);
    else if (IS("--most")) want.most = atoll(value);
    else if (IS("--seconds")) want.seconds = atof(value);
    else if (IS("--rate")) want.rate = atof(value);
    else if (IS("--path")) want.path = value;
    else if (IS("--dialect")) return speak(value);
    else if (IS("--say")) want.words = value;
    else if (IS("--header")) {
        size_t used = strlen(want.headers);
        snprintf(want.headers + used, sizeof want.headers - used, "%s\r\n", value);
    } else return -1;
    return 1;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(poller, EPOLL_CTL_ADD, timer, EPOLLIN, &alarm_clock);
    for (int i = 2; i < argc; i++) {
        int taken = take_option(argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (taken < 0) return fprintf(stderr, "load: %s?\n", argv[i]), 2;
        i += taken;
    }
    if (want.pace) want.records = (long long)(want.seconds * 1e6) / want.pace;
    if (argc > 1 && strcmp(argv[1], "streams") == 0 && want.streams && want.records > 0) run_streams();
    else if (argc > 1 && strcmp(argv[1], "json") == 0 && (want.connections || want.rate)) run_json();
    else return fprintf(stderr, "load: streams or json, how many, and for how long?\n"), 2;
    return 0;
}
