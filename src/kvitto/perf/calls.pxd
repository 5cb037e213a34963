# The C twins of calls.py. The descriptors do not block, so the calls keep the interpreter.
cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #include <time.h>
    #ifndef MSG_NOSIGNAL  /* macOS: Python ignores the signal anyway */
    #define MSG_NOSIGNAL 0
    #endif
    static inline Py_ssize_t kv_receive(int fd, unsigned char *p, Py_ssize_t n) { return recv(fd, p, (size_t)n, MSG_DONTWAIT); }
    static inline Py_ssize_t kv_send(int fd, const unsigned char *p, Py_ssize_t n) {
        return send(fd, p, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    static inline unsigned long long kv_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (unsigned long long)t.tv_sec * 1000000000ULL + (unsigned long long)t.tv_nsec;
    }
    """
    Py_ssize_t kv_receive(int fd, unsigned char *p, Py_ssize_t n) noexcept
    Py_ssize_t kv_send(int fd, const unsigned char *p, Py_ssize_t n) noexcept
    unsigned long long kv_now_ns() noexcept

cdef inline Py_ssize_t receive(int fd, unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept:
    return kv_receive(fd, p + i, n)

cdef inline Py_ssize_t send(int fd, unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept:
    return kv_send(fd, p + i, n)

cdef inline unsigned long long now_ns() noexcept:
    return kv_now_ns()
