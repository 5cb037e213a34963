# The C twins of ready.py. Waiting gives up the interpreter, unless it only looks.
cdef extern from * nogil:
    """
    #include <errno.h>
    #if defined(__linux__)
    #include <sys/epoll.h>
    static inline int kv_wait(int fd, char *events, int most, int timeout_ms) {
        int n = epoll_wait(fd, (struct epoll_event *)events, most, timeout_ms);
        return n < 0 ? -errno : n;
    }
    static inline int kv_fd(const char *events, Py_ssize_t i) { return ((const struct epoll_event *)events)[i].data.fd; }
    static inline unsigned int kv_bits(const char *events, Py_ssize_t i) { return ((const struct epoll_event *)events)[i].events; }
    #else  /* never called: there is no select.epoll */
    static inline int kv_wait(int fd, char *events, int most, int timeout_ms) { return -ENOSYS; }
    static inline int kv_fd(const char *events, Py_ssize_t i) { return -1; }
    static inline unsigned int kv_bits(const char *events, Py_ssize_t i) { return 0; }
    #endif
    """
    int kv_wait(int fd, char *events, int most, int timeout_ms) noexcept
    int kv_fd(const char *events, Py_ssize_t i) noexcept
    unsigned int kv_bits(const char *events, Py_ssize_t i) noexcept

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR

cdef inline int wait(object epoll, int fd, bytearray events, int most, int timeout_ms) except? -1:
    cdef char *at = events
    cdef int n
    if timeout_ms == 0:
        n = kv_wait(fd, at, most, 0)
    else:
        with nogil:
            n = kv_wait(fd, at, most, timeout_ms)
    if n == -EINTR:
        PyErr_CheckSignals()
        return 0
    if n < 0:
        raise OSError(-n, "the system does not say which sockets are ready")
    return n

cdef inline int descriptor(bytearray events, Py_ssize_t i) noexcept:
    return kv_fd(events, i)

cdef inline unsigned int bits(bytearray events, Py_ssize_t i) noexcept:
    return kv_bits(events, i)
