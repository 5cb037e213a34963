# The C twins of ticks.py.
cdef extern from * nogil:
    """
    #include <time.h>
    static inline unsigned long long kv_clock_ns(clockid_t clock) {
        struct timespec t;
        clock_gettime(clock, &t);
        return (unsigned long long)t.tv_sec * 1000000000ULL + (unsigned long long)t.tv_nsec;
    }
    static inline unsigned long long kv_now_ns(void) { return kv_clock_ns(CLOCK_MONOTONIC); }
    static inline double kv_now_s(void) { return 1e-9 * (double)kv_clock_ns(CLOCK_MONOTONIC); }
    static inline long long kv_wall_ms(void) { return (long long)(kv_clock_ns(CLOCK_REALTIME) / 1000000ULL); }
    static inline long long kv_monotonic_ms(void) { return (long long)(kv_clock_ns(CLOCK_MONOTONIC) / 1000000ULL); }
    """
    unsigned long long kv_now_ns() noexcept
    double kv_now_s() noexcept
    long long kv_wall_ms() noexcept
    long long kv_monotonic_ms() noexcept

cdef inline unsigned long long now_ns() noexcept:
    return kv_now_ns()

cdef inline double seconds() noexcept:
    return kv_now_s()

cdef inline long long wall_ms() noexcept:
    return kv_wall_ms()

cdef inline long long monotonic_ms() noexcept:
    return kv_monotonic_ms()
