# The C twins of rawio.py. These calls are usually short, so they keep the interpreter.
cdef extern from * nogil:
    """
    #include <errno.h>
    #include <sys/socket.h>
    #include <unistd.h>
    #ifndef MSG_NOSIGNAL  /* macOS; Python ignores the signal */
    #define MSG_NOSIGNAL 0
    #endif
    static inline ssize_t kv_receive(int fd, void *to, size_t most) {
        ssize_t n;
        do n = recv(fd, to, most, 0); while (n < 0 && errno == EINTR);
        return n < 0 ? -(ssize_t)errno : n;
    }
    static inline ssize_t kv_send(int fd, const void *from, size_t size) {
        ssize_t n;
        do n = send(fd, from, size, MSG_NOSIGNAL); while (n < 0 && errno == EINTR);
        return n < 0 ? -(ssize_t)errno : n;
    }
    static inline ssize_t kv_send_view(int fd, PyObject *data) {
        Py_buffer view;
        ssize_t n;
        if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) { PyErr_Clear(); return -EFAULT; }
        n = kv_send(fd, view.buf, (size_t)view.len);
        PyBuffer_Release(&view);
        return n;
    }
    static inline ssize_t kv_write_file(int fd, PyObject *data, long long position) {
        Py_buffer view;
        ssize_t n;
        if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) { PyErr_Clear(); return -EFAULT; }
        do n = pwrite(fd, view.buf, (size_t)view.len, (off_t)position); while (n < 0 && errno == EINTR);
        PyBuffer_Release(&view);
        return n < 0 ? -(ssize_t)errno : n;
    }
    """
    Py_ssize_t kv_receive(int fd, void *to, size_t most) noexcept
    Py_ssize_t kv_send(int fd, const void *start, size_t size) noexcept

cdef extern from *:
    Py_ssize_t kv_send_view(int fd, object data) noexcept
    Py_ssize_t kv_write_file(int fd, object data, long long position) noexcept

cdef inline Py_ssize_t receive(int fd, unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept:
    return kv_receive(fd, p + i, n)

cdef inline Py_ssize_t send(int fd, unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept:
    return kv_send(fd, p + i, n)

cdef inline Py_ssize_t send_view(int fd, object data) noexcept:
    return kv_send_view(fd, data)

cdef inline Py_ssize_t write_file(int fd, object data, long long position) noexcept:
    return kv_write_file(fd, data, position)
