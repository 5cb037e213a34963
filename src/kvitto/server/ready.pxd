# The C twins of ready.py. Waiting gives up the interpreter, unless it only looks.
cdef extern from * nogil:
    """
    #include <errno.h>
    #if defined(__linux__)
    #include <sys/epoll.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifndef SYS_epoll_pwait2  /* the C library may be older than the kernel */
    #define SYS_epoll_pwait2 441
    #endif
    static int kv_coarse = 0;  /* the kernel, or a filter of system calls, knows only milliseconds */
    static int kv_wait(int fd, char *events, int most, double timeout) {
        int n;
        if (timeout > 0 && !kv_coarse) {
            struct { long long seconds, nanoseconds; } t;
            t.seconds = (long long)timeout;
            t.nanoseconds = (long long)((timeout - (double)t.seconds) * 1e9);
            n = (int)syscall(SYS_epoll_pwait2, fd, events, most, &t, NULL, (size_t)0);
            if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return n < 0 ? -errno : n;
            kv_coarse = 1;
        }
        n = (int)(timeout * 1e3);
        n = epoll_wait(fd, (struct epoll_event *)events, most, timeout < 0 ? -1 : n < timeout * 1e3 ? n + 1 : n);
        return n < 0 ? -errno : n;
    }
    static inline int kv_fd(const char *events, Py_ssize_t i) { return ((const struct epoll_event *)events)[i].data.fd; }
    static inline unsigned int kv_bits(const char *events, Py_ssize_t i) { return ((const struct epoll_event *)events)[i].events; }
    static int kv_fine(int fd) {
        char event[64];
        (void)kv_wait(fd, event, 1, 1e-9);
        return !kv_coarse;
    }
    #else  /* never called: there is no select.epoll */
    static inline int kv_wait(int fd, char *events, int most, double timeout) { return -ENOSYS; }
    static inline int kv_fine(int fd) { return 0; }
    static inline int kv_fd(const char *events, Py_ssize_t i) { return -1; }
    static inline unsigned int kv_bits(const char *events, Py_ssize_t i) { return 0; }
    #endif
    """
    int kv_wait(int fd, char *events, int most, double timeout) noexcept
    int kv_fine(int fd) noexcept
    int kv_fd(const char *events, Py_ssize_t i) noexcept
    unsigned int kv_bits(const char *events, Py_ssize_t i) noexcept

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR

cdef inline int wait(object epoll, int fd, bytearray events, int most, double timeout) except? -1:
    cdef char *at = events
    cdef int n
    if timeout == 0:
        n = kv_wait(fd, at, most, 0)
    else:
        with nogil:
            n = kv_wait(fd, at, most, timeout)
    if n == -EINTR:
        PyErr_CheckSignals()
        return 0
    if n < 0:
        raise OSError(-n, "the system does not say which sockets are ready")
    return n

cdef inline bint fine(int fd) noexcept:
    return kv_fine(fd)

cdef inline int descriptor(bytearray events, Py_ssize_t i) noexcept:
    return kv_fd(events, i)

cdef inline unsigned int bits(bytearray events, Py_ssize_t i) noexcept:
    return kv_bits(events, i)
