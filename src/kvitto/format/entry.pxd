# Inline twins of entry.py for compiled callers. The numbers are those of layouts.ENTRY; tests/format/test_twins.py compares them.
from kvitto.wire cimport bits

cdef enum:
    SIZE = 24
    META_AT = 0
    BODY_AT = 4
    BODY_LEN_AT = 8
    PROPS_LEN_AT = 12
    KEY_LEN_AT = 16
    FLAGS_AT = 18
    TTL_HIGH_AT = 19
    TTL_LOW_AT = 20
    EXPIRES = 1
    DEAD = 2
    SPECIAL = 4

cdef struct Message:
    Py_ssize_t meta, body, body_len, props_len, key_len

cdef inline Message read(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    cdef Message found
    found.meta = bits.le32(p, e + META_AT)
    found.body = bits.le32(p, e + BODY_AT)
    found.body_len = bits.le32(p, e + BODY_LEN_AT)
    found.props_len = bits.le32(p, e + PROPS_LEN_AT)
    found.key_len = bits.le16(p, e + KEY_LEN_AT)
    return found
cdef inline Py_ssize_t meta(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le32(p, e + META_AT)
cdef inline Py_ssize_t body(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le32(p, e + BODY_AT)
cdef inline Py_ssize_t body_len(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le32(p, e + BODY_LEN_AT)
cdef inline Py_ssize_t props_len(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le32(p, e + PROPS_LEN_AT)
cdef inline Py_ssize_t key_len(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le16(p, e + KEY_LEN_AT)
cdef inline unsigned int flags(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return p[e + FLAGS_AT]
cdef inline long long ttl_ms(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    if not p[e + FLAGS_AT] & EXPIRES:
        return -1
    return (<long long>p[e + TTL_HIGH_AT] << 32) + bits.le32(p, e + TTL_LOW_AT)
cdef inline void put(unsigned char* p, Py_ssize_t e, Py_ssize_t meta, Py_ssize_t body, Py_ssize_t body_len, Py_ssize_t props_len, Py_ssize_t key_len) noexcept nogil:
    bits.put_le32(p, e + META_AT, <unsigned int>meta)
    bits.put_le32(p, e + BODY_AT, <unsigned int>body)
    bits.put_le32(p, e + BODY_LEN_AT, <unsigned int>body_len)
    bits.put_le32(p, e + PROPS_LEN_AT, <unsigned int>props_len)
    bits.put_le16(p, e + KEY_LEN_AT, <unsigned int>key_len)
cdef inline void put_body(unsigned char* p, Py_ssize_t e, Py_ssize_t body, Py_ssize_t body_len) noexcept nogil:
    bits.put_le32(p, e + BODY_AT, <unsigned int>body)
    bits.put_le32(p, e + BODY_LEN_AT, <unsigned int>body_len)
cdef inline void put_flags(unsigned char* p, Py_ssize_t e, long long ttl_ms, unsigned int flags) noexcept nogil:
    if ttl_ms < 0:
        bits.put_le16(p, e + FLAGS_AT, flags)
        bits.put_le32(p, e + TTL_LOW_AT, 0)
    else:
        bits.put_le16(p, e + FLAGS_AT, flags | EXPIRES | <unsigned int>(ttl_ms >> 32) << 8)
        bits.put_le32(p, e + TTL_LOW_AT, <unsigned int>ttl_ms)
