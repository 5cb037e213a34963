# The C twins of datasync.py: while they run, their threads neither have the interpreter nor wait for it.
cdef extern from * nogil:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <signal.h>
    #include <stdint.h>
    #include <sys/stat.h>
    #include <time.h>
    #include <unistd.h>
    struct kv_request { int32_t count, fd[15]; };
    struct kv_outcome { int32_t fd, error; double begin, end; };
    static double kv_seconds(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    }
    static int kv_sync(int fd) {
        int result;
        do {
    #if defined(F_FULLFSYNC)  /* macOS: fsync leaves the bytes in the device's cache */
            result = fcntl(fd < 0 ? ~fd : fd, F_FULLFSYNC);
            if (result < 0 && (errno == ENOTSUP || errno == EOPNOTSUPP || errno == EINVAL || errno == ENOTTY))
                result = fsync(fd < 0 ? ~fd : fd);
    #else
            result = fd < 0 ? fsync(~fd) : fdatasync(fd);
    #endif
        } while (result < 0 && errno == EINTR);
        return result;
    }
    static void kv_serve(int requests, int outcomes) {
        struct kv_request r;
        struct kv_outcome o;
        ssize_t n;
        for (;;) {
            do n = read(requests, &r, sizeof r); while (n < 0 && errno == EINTR);
            if (n != (ssize_t)sizeof r || r.count < 0) return;
            o.begin = kv_seconds();
            o.fd = -1;
            o.error = 0;
            for (int i = 0; i < r.count && i < 15; i++) {
                o.fd = r.fd[i];
                if (kv_sync(r.fd[i]) < 0) { o.error = errno; break; }
            }
            o.end = kv_seconds();
            do n = write(outcomes, &o, sizeof o); while (n < 0 && errno == EINTR);
            if (n < 0) return;
        }
    }
    static void kv_close(int fd) {
    #if defined(F_SETLEASE)
        const off_t step = 16 << 20;
        const struct timespec pause = {0, 2000000};
        struct stat s;
        fcntl(fd, F_SETSIG, SIGURG);  /* SIGIO, the usual signal to the holder of a lease, would end the process */
        if (fstat(fd, &s) == 0 && s.st_nlink == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0) {
            fcntl(fd, F_SETLEASE, F_UNLCK);
            while (s.st_size > step && ftruncate(fd, s.st_size -= step) == 0) nanosleep(&pause, NULL);
        }
    #endif
        close(fd);
    }
    static void kv_free(int descriptors, int freed) {
        int32_t fd;
        ssize_t n;
        for (;;) {
            do n = read(descriptors, &fd, sizeof fd); while (n < 0 && errno == EINTR);
            if (n != (ssize_t)sizeof fd || fd < 0) return;
            kv_close(fd);
            do n = write(freed, &fd, 1); while (n < 0 && errno == EINTR);
            if (n < 0) return;
        }
    }
    """
    void kv_free(int descriptors, int freed) noexcept
    void kv_serve(int requests, int outcomes) noexcept

cdef inline void serve(int requests, int outcomes) noexcept:
    with nogil:
        kv_serve(requests, outcomes)

cdef inline void free(int descriptors, int freed) noexcept:
    with nogil:
        kv_free(descriptors, freed)
