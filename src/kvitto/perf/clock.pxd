# The C twin of clock.py.
cdef extern from * nogil:
    """
    #include <time.h>
    static inline unsigned long long kv_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (unsigned long long)t.tv_sec * 1000000000ULL + (unsigned long long)t.tv_nsec;
    }
    """
    unsigned long long kv_now_ns() noexcept

cdef inline unsigned long long now_ns() noexcept:
    return kv_now_ns()
