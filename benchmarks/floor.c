/* The system calls that a message costs a broker, and nothing else. `floor.py` compiles this, starts it, and explains its arguments.

   One process is the publishers and consumers, the other one is the broker. What passes between them has the sizes of AMQP's frames, and
   is not read. For each round of epoll the broker writes what has come into a file, sends each message to a consumer, and writes the acks
   that have come into a second file. Then it syncs the first file, if that is due, and confirms. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_PAIRS = 256,
    HEAD = 72,   /* the frames of a message around its body */
    ANSWER = 21, /* basic.ack, the frame of a confirm and of an ack */
    SETTLED = 8,
    READ = 64 << 10,
    BUFFER = (2 * MOST_PAIRS + 1) * READ,
    RESERVED = 1 << 20,
    MOST_TIMES = 4 << 20,
};

static int pairs, rate, size, bursts, core;
static long long gather_ns;
static int publishers[MOST_PAIRS], consumers[MOST_PAIRS]; /* the sockets of this process */
static char buffer[BUFFER];
static unsigned times_ns[MOST_TIMES]; /* from publisher to consumer */

static void fail(const char *what) {
    perror(what);
    _exit(1);
}

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long cpu_ns(const struct rusage *usage) {
    return (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000000LL + (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) * 1000LL;
}

/* Clients that have sent all go without a look at what still comes. */
static int gone(void) { return errno == ECONNRESET || errno == EPIPE; }

static void put(int fd, const void *data, size_t length) {
    ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
    if (sent != (ssize_t)length && !(sent < 0 && gone())) fail("send");
}

/* Read whole messages of `length` bytes. Return how many there were, 0 at the end of the connection. */
static int get(int fd, char *data, int length) {
    ssize_t got = recv(fd, data, READ, 0);
    if (got < 0 && gone()) return 0;
    if (got < 0) fail("recv");
    int rest = (int)(got % length);
    if (rest && recv(fd, data + got, (size_t)(length - rest), MSG_WAITALL) != length - rest) fail("recv");
    return (int)((got + length - 1) / length);
}

static void watch(int epoll, int fd, unsigned number, int consumer) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = number << 1 | (unsigned)consumer};
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("watch");
}

/* Wait for events until a time, 0: for ever. Return how many there are. */
static int wait_until(int epoll, struct epoll_event *events, long long until) {
    struct timespec left, *timeout = NULL;
    if (until) {
        long long rest = until - now_ns();
        if (rest < 0) rest = 0;
        left = (struct timespec){rest / 1000000000LL, rest % 1000000000LL};
        timeout = &left;
    }
    int count = epoll_pwait2(epoll, events, 2 * MOST_PAIRS, timeout, NULL);
    if (count < 0 && errno != EINTR) fail("epoll_pwait2");
    return count < 0 ? 0 : count;
}

static int create(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (fd < 0) fail(path);
    return fd;
}

static void serve(int epoll, pid_t clients, const char *directory) {
    struct epoll_event events[2 * MOST_PAIRS];
    static int waiting[MOST_PAIRS]; /* by publisher, the messages that wait for the next sync */
    static char acks[2 * READ];
    int log = create(directory, "log"), settlements = create(directory, "acks"), next = 0, publishing = pairs, unconfirmed = 0;
    long long log_size = 0, reserved = 0, acked = 0, synced = 0, due = 0, started = 0, count = 0, syncs = 0, rounds = 0;
    struct rusage first = {0}, last;
    while (publishing) {
        int ready = wait_until(epoll, events, due), come = 0, settled = 0;
        for (int i = 0; i < ready; i++) {
            unsigned number = (unsigned)events[i].data.u64 >> 1;
            if (events[i].data.u64 & 1) {
                settled += get(consumers[number], acks, ANSWER);
                continue;
            }
            int messages = get(publishers[number], buffer + (size_t)come * (size_t)size, size);
            come += messages;
            waiting[number] += messages;
            if (!messages && !--publishing) break;
            if (!messages) epoll_ctl(epoll, EPOLL_CTL_DEL, publishers[number], NULL);
        }
        rounds++;
        if (come && !started) {
            started = now_ns();
            getrusage(RUSAGE_SELF, &first);
        }
        if (come) {
            long long length = (long long)come * size;
            while (log_size + length > reserved) { /* a sync inside reserved space makes no new size durable */
                if (posix_fallocate(log, reserved, RESERVED)) fail("fallocate");
                reserved += RESERVED;
            }
            if (pwrite(log, buffer, (size_t)length, log_size) != length) fail("pwrite");
            log_size += length;
            for (int i = 0, run = bursts ? come : 1; i < come; i += run, next = (next + 1) % pairs)
                put(consumers[next], buffer + (size_t)i * (size_t)size, (size_t)run * (size_t)size);
            count += come;
            unconfirmed += come;
        }
        if (settled) {
            if (pwrite(settlements, buffer, (size_t)settled * SETTLED, acked) < 0) fail("pwrite");
            acked += settled * SETTLED;
        }
        due = 0;
        if (unconfirmed && (rate || unconfirmed < pairs) && now_ns() < synced + gather_ns)
            due = synced + gather_ns;
        else if (unconfirmed) {
            synced = now_ns();
            if (fdatasync(log)) fail("fdatasync");
            syncs++;
            for (int i = 0; i < pairs; i++)
                if (waiting[i]) put(publishers[i], buffer, ANSWER);
            memset(waiting, 0, sizeof waiting);
            unconfirmed = 0;
        }
    }
    getrusage(RUSAGE_SELF, &last);
    double seconds = (double)(now_ns() - started) / 1e9, cpu_us = (double)(cpu_ns(&last) - cpu_ns(&first)) / 1e3;
    waitpid(clients, NULL, 0); /* these have printed their line then */
    printf("%.0f %.2f %.0f %.0f\n", (double)count / seconds, cpu_us / (double)count, (double)syncs / seconds, (double)rounds / seconds);
}

static int ascending(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

static void publish(int number) {
    long long now = now_ns();
    memcpy(buffer, &now, sizeof now);
    put(publishers[number], buffer, (size_t)size);
}

static void pin(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one)) fail("sched_setaffinity");
}

static void load(int epoll, double seconds) {
    struct epoll_event events[2 * MOST_PAIRS];
    static char taken[2 * READ];
    long long began = now_ns(), end = began + (long long)(seconds * 1e9), sent = 0;
    size_t count = 0;
    int done = 0;
    pin();
    if (!rate)
        for (int i = 0; i < pairs; i++) publish(i);
    while (!done) {
        long long due = end;
        while (rate && (due = began + sent * 1000000000LL / ((long long)rate * pairs)) <= now_ns()) publish((int)(sent++ % pairs));
        int ready = wait_until(epoll, events, due < end ? due : end);
        done = now_ns() >= end;
        for (int i = 0; i < ready; i++) {
            int number = (int)(events[i].data.u64 >> 1);
            if (!(events[i].data.u64 & 1)) {
                int confirms = get(publishers[number], taken, ANSWER);
                if (!confirms) fail("the broker has gone");
                if (!rate && !done) publish(number);
                continue;
            }
            int messages = get(consumers[number], taken, size);
            long long now = now_ns();
            if (count + (size_t)messages > MOST_TIMES) fail("too many messages: let it run for a shorter time");
            for (int k = 0; k < messages; k++) {
                long long stamp;
                memcpy(&stamp, taken + (size_t)k * (size_t)size, sizeof stamp);
                times_ns[count++] = (unsigned)(now - stamp);
            }
            put(consumers[number], buffer, (size_t)messages * ANSWER);
        }
    }
    for (int i = 0; i < pairs; i++) shutdown(publishers[i], SHUT_WR);
    qsort(times_ns, count, sizeof *times_ns, ascending);
    if (!count) fail("no message has come");
    printf("%.0f %.0f %.0f\n", times_ns[count / 2] / 1e3, times_ns[count * 95 / 100] / 1e3, times_ns[count * 99 / 100] / 1e3);
}

int main(int argc, char **argv) {
    if (argc != 9) return 2;
    pairs = atoi(argv[1]), rate = atoi(argv[2]), size = HEAD + atoi(argv[3]), gather_ns = atoll(argv[5]) * 1000, bursts = atoi(argv[6]);
    core = atoi(argv[8]);
    if (pairs < 1 || pairs > MOST_PAIRS || size < HEAD + (int)sizeof(long long) || size > READ) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), theirs[2 * MOST_PAIRS];
    if (bind(listener, (void *)&address, length) || listen(listener, 1) || getsockname(listener, (void *)&address, &length)) fail("listen");
    for (int i = 0; i < 2 * pairs; i++) {
        theirs[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (theirs[i] < 0 || connect(theirs[i], (void *)&address, length)) fail("connect");
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
        (i < pairs ? publishers : consumers)[i % pairs] = fd;
    }
    fflush(stdout);
    pid_t clients = fork();
    if (clients < 0) fail("fork");
    int epoll = epoll_create1(0);
    for (int i = 0; i < 2 * pairs; i++) {
        int *mine = &(i < pairs ? publishers : consumers)[i % pairs];
        close(clients ? theirs[i] : *mine);
        if (!clients) *mine = theirs[i];
        watch(epoll, *mine, (unsigned)(i % pairs), i >= pairs);
    }
    if (clients)
        serve(epoll, clients, argv[7]);
    else
        load(epoll, atof(argv[4]));
    return 0;
}
