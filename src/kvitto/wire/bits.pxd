# Inline twins of bits.py for compiled callers. Loads and stores go through memcpy, which gcc turns into one move.
from libc.string cimport memcmp

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #error "Kvitto's compiled modules need a little-endian machine; install without a compiler to run interpreted"
    #endif
    static inline unsigned int kv_be16(const unsigned char *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
    static inline unsigned int kv_be32(const unsigned char *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline unsigned long long kv_be64(const unsigned char *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void kv_put16(unsigned char *p, unsigned int x) { uint16_t v = __builtin_bswap16((uint16_t)x); memcpy(p, &v, 2); }
    static inline void kv_put32(unsigned char *p, unsigned int x) { uint32_t v = __builtin_bswap32(x); memcpy(p, &v, 4); }
    static inline void kv_put64(unsigned char *p, unsigned long long x) { uint64_t v = __builtin_bswap64(x); memcpy(p, &v, 8); }
    static inline unsigned int kv_le16(const unsigned char *p) { uint16_t v; memcpy(&v, p, 2); return v; }
    static inline unsigned int kv_le32(const unsigned char *p) { uint32_t v; memcpy(&v, p, 4); return v; }
    static inline unsigned long long kv_le64(const unsigned char *p) { uint64_t v; memcpy(&v, p, 8); return v; }
    static inline void kv_put_le16(unsigned char *p, unsigned int x) { uint16_t v = (uint16_t)x; memcpy(p, &v, 2); }
    static inline void kv_put_le32(unsigned char *p, unsigned int x) { uint32_t v = x; memcpy(p, &v, 4); }
    static inline void kv_put_le64(unsigned char *p, unsigned long long x) { uint64_t v = x; memcpy(p, &v, 8); }
    static inline void kv_copy(unsigned char *d, const unsigned char *s, Py_ssize_t n) {
        if (n <= 64) {                       /* short fields: cheaper than a call into libc */
            while (n >= 8) { uint64_t v; memcpy(&v, s, 8); memcpy(d, &v, 8); d += 8; s += 8; n -= 8; }
            while (n-- > 0) *d++ = *s++;
        } else memcpy(d, s, (size_t)n);
    }
    """
    unsigned int kv_be16(const unsigned char* p) noexcept
    unsigned int kv_be32(const unsigned char* p) noexcept
    unsigned long long kv_be64(const unsigned char* p) noexcept
    void kv_put16(unsigned char* p, unsigned int v) noexcept
    void kv_put32(unsigned char* p, unsigned int v) noexcept
    void kv_put64(unsigned char* p, unsigned long long v) noexcept
    unsigned int kv_le16(const unsigned char* p) noexcept
    unsigned int kv_le32(const unsigned char* p) noexcept
    unsigned long long kv_le64(const unsigned char* p) noexcept
    void kv_put_le16(unsigned char* p, unsigned int v) noexcept
    void kv_put_le32(unsigned char* p, unsigned int v) noexcept
    void kv_put_le64(unsigned char* p, unsigned long long v) noexcept
    void kv_copy(unsigned char* d, const unsigned char* s, Py_ssize_t n) noexcept

cdef inline unsigned int be16(const unsigned char* p, Py_ssize_t i) noexcept nogil:
    return kv_be16(p + i)
cdef inline unsigned int be32(const unsigned char* p, Py_ssize_t i) noexcept nogil:
    return kv_be32(p + i)
cdef inline unsigned long long be64(const unsigned char* p, Py_ssize_t i) noexcept nogil:
    return kv_be64(p + i)
cdef inline void put16(unsigned char* p, Py_ssize_t i, unsigned int v) noexcept nogil:
    kv_put16(p + i, v)
cdef inline void put32(unsigned char* p, Py_ssize_t i, unsigned int v) noexcept nogil:
    kv_put32(p + i, v)
cdef inline void put64(unsigned char* p, Py_ssize_t i, unsigned long long v) noexcept nogil:
    kv_put64(p + i, v)
cdef inline unsigned int le16(const unsigned char* p, Py_ssize_t i) noexcept nogil:
    return kv_le16(p + i)
cdef inline unsigned int le32(const unsigned char* p, Py_ssize_t i) noexcept nogil:
    return kv_le32(p + i)
cdef inline unsigned long long le64(const unsigned char* p, Py_ssize_t i) noexcept nogil:
    return kv_le64(p + i)
cdef inline void put_le16(unsigned char* p, Py_ssize_t i, unsigned int v) noexcept nogil:
    kv_put_le16(p + i, v)
cdef inline void put_le32(unsigned char* p, Py_ssize_t i, unsigned int v) noexcept nogil:
    kv_put_le32(p + i, v)
cdef inline void put_le64(unsigned char* p, Py_ssize_t i, unsigned long long v) noexcept nogil:
    kv_put_le64(p + i, v)
cdef inline void copy(unsigned char* dst, Py_ssize_t d, const unsigned char* src, Py_ssize_t s, Py_ssize_t n) noexcept nogil:
    kv_copy(dst + d, src + s, n)
cdef inline bint same(const unsigned char* a, Py_ssize_t i, const unsigned char* b, Py_ssize_t j, Py_ssize_t n) noexcept nogil:
    return memcmp(a + i, b + j, <size_t>n) == 0
