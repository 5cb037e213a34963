/* Preloaded into a broker: lets a sync fail as a broken device does.
 *
 * Once the file named by KVITTO_SYNC_FAULT is there, with a number n in it, the n-th fsync or fdatasync from then on fails with EIO.
 * What had been written to that file since its last sync is then gone, as where the kernel has dropped the pages: it is zeros. Later syncs
 * succeed, as they do on Linux, which reports an error once. With "all" behind the number they all fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES = 4096, RANGES = 512 };

struct range { off_t at, end; };
static struct { int count; struct range ranges[RANGES]; } unsynced[FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int armed, left, all;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static ssize_t wrote(int fd, off_t at, ssize_t n) {
    if (n > 0 && fd >= 0 && fd < FILES) {
        pthread_mutex_lock(&lock);
        int count = unsynced[fd].count;
        struct range *last = &unsynced[fd].ranges[count - 1];
        if (count && last->end == at)
            last->end += n;
        else if (count < RANGES)
            unsynced[fd].ranges[unsynced[fd].count++] = (struct range){at, at + n};
        pthread_mutex_unlock(&lock);
    }
    return n;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return wrote(fd, at, REAL(pwritev)(fd, parts, count, at));
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    return wrote(fd, at, REAL(pwritev64)(fd, parts, count, at));
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return wrote(fd, at, REAL(pwritev2)(fd, parts, count, at, flags));
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    return wrote(fd, at, REAL(pwritev64v2)(fd, parts, count, at, flags));
}

int close(int fd) {
    if (fd >= 0 && fd < FILES)
        unsynced[fd].count = 0;
    return REAL(close)(fd);
}

static int fails(void) {
    char text[32] = "";
    const char *name = getenv("KVITTO_SYNC_FAULT");
    if (!armed) {
        int fd = name ? open(name, O_RDONLY) : -1;
        if (fd < 0)
            return 0;
        if (read(fd, text, sizeof text - 1) < 0)
            text[0] = 0;
        REAL(close)(fd);
        armed = 1;
        left = atoi(text);
        all = strstr(text, "all") != NULL;
    }
    left--;
    return left == 0 || (left < 0 && all);
}

static void drop(int fd) {
    static const char zeros[4096];
    for (int i = 0; i < unsynced[fd].count; i++) {
        struct range r = unsynced[fd].ranges[i];
        while (r.at < r.end) {
            ssize_t n = pwrite(fd, zeros, r.end - r.at < 4096 ? r.end - r.at : 4096, r.at);
            if (n <= 0)
                return;
            r.at += n;
        }
    }
}

static int checked(int fd, int (*sync)(int)) {
    pthread_mutex_lock(&lock);
    int failed = fails();
    if (failed && fd >= 0 && fd < FILES)
        drop(fd);
    if (fd >= 0 && fd < FILES)
        unsynced[fd].count = 0;
    pthread_mutex_unlock(&lock);
    if (failed) {
        errno = EIO;
        return -1;
    }
    return sync(fd);
}

int fdatasync(int fd) {
    return checked(fd, REAL(fdatasync));
}

int fsync(int fd) {
    return checked(fd, REAL(fsync));
}
