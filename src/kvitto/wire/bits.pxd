# Inline twins of bits.py for compiled callers. Loads and stores go through memcpy, which gcc turns into one move.
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_FromStringAndSize

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
    /* Short fields are moved and compared here, because a call into libc costs more. The last move of a field overlaps the one before
       it, so both loads come before both stores. The two fields themselves must not overlap. */
    #define KV_TWICE(T, n) { T first, last; memcpy(&first, s, sizeof(T)); memcpy(&last, s + (n) - sizeof(T), sizeof(T)); \
                             memcpy(d, &first, sizeof(T)); memcpy(d + (n) - sizeof(T), &last, sizeof(T)); }
    #define KV_DIFFERENT(T, a, b) ({ T x, y; memcpy(&x, a, sizeof(T)); memcpy(&y, b, sizeof(T)); x != y; })
    static inline void kv_copy(unsigned char *d, const unsigned char *s, Py_ssize_t n) {
        if (n > 64) memcpy(d, s, (size_t)n);
        else if (n > 16) {
            uint64_t v, last;
            memcpy(&last, s + n - 8, 8);
            unsigned char *end = d + n - 8;
            for (; d < end; d += 8, s += 8) { memcpy(&v, s, 8); memcpy(d, &v, 8); }
            memcpy(end, &last, 8);
        }
        else if (n >= 8) KV_TWICE(uint64_t, n)
        else if (n >= 4) KV_TWICE(uint32_t, n)
        else if (n >= 2) KV_TWICE(uint16_t, n)
        else if (n == 1) *d = *s;
    }
    static inline int kv_same(const unsigned char *a, const unsigned char *b, Py_ssize_t n) {
        if (n > 64) return memcmp(a, b, (size_t)n) == 0;
        if (n >= 8) {
            Py_ssize_t i;
            for (i = 0; i < n - 8; i += 8) if (KV_DIFFERENT(uint64_t, a + i, b + i)) return 0;
            return !KV_DIFFERENT(uint64_t, a + n - 8, b + n - 8);
        }
        if (n >= 4) return !KV_DIFFERENT(uint32_t, a, b) && !KV_DIFFERENT(uint32_t, a + n - 4, b + n - 4);
        if (n >= 2) return !KV_DIFFERENT(uint16_t, a, b) && !KV_DIFFERENT(uint16_t, a + n - 2, b + n - 2);
        return n <= 0 || *a == *b;
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
    bint kv_same(const unsigned char* a, const unsigned char* b, Py_ssize_t n) noexcept
    void* memset(void* p, int value, size_t n)

cdef inline bytearray zeros(Py_ssize_t n):
    cdef bytearray made = PyByteArray_FromStringAndSize(NULL, n)
    memset(PyByteArray_AS_STRING(made), 0, n)
    return made
cdef inline bytes piece(const unsigned char* p, Py_ssize_t i, Py_ssize_t n):
    return PyBytes_FromStringAndSize(<const char*>p + i, n)
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
    return kv_same(a + i, b + j, n)
