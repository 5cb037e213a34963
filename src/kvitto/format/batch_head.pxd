# The inline twins of batch_head.py for compiled callers. The numbers are those of layouts.BATCH; tests/format/test_twins.py compares them.
from kvitto.wire cimport bits

cdef enum:
    MAGIC_AT = 0
    LENGTH_AT = 4
    CHECKSUM_AT = 8
    FIRST_AT = 16
    TIME_MS_AT = 24
    MESSAGES_AT = 32
    META_LEN_AT = 36
    BODY_LEN_AT = 40
    JOURNAL_AT = 48
    DURABLE_AT = 56
    MAGIC = 0x3142564B  # "KVB1"
    SIZE = 64
    ENTRY_SIZE = 24

cdef struct Head:
    Py_ssize_t length, messages, meta_len, body_len
    unsigned long long checksum, first
    long long time_ms

cdef inline void put(unsigned char* p, Py_ssize_t length, unsigned long long first, long long time_ms, Py_ssize_t count, Py_ssize_t meta_len, Py_ssize_t body_len, unsigned long long journal, unsigned long long durable) noexcept nogil:
    bits.put_le32(p, MAGIC_AT, MAGIC)
    bits.put_le32(p, LENGTH_AT, <unsigned int>length)
    bits.put_le64(p, FIRST_AT, first)
    bits.put_le64(p, TIME_MS_AT, time_ms)
    bits.put_le32(p, MESSAGES_AT, <unsigned int>count)
    bits.put_le32(p, META_LEN_AT, <unsigned int>meta_len)
    bits.put_le32(p, BODY_LEN_AT, <unsigned int>body_len)
    bits.put_le64(p, JOURNAL_AT, journal)
    bits.put_le64(p, DURABLE_AT, durable)

cdef inline Head read(const unsigned char* p, Py_ssize_t at) noexcept nogil:
    cdef Head found
    found.checksum = bits.le64(p, at + CHECKSUM_AT)
    found.first = bits.le64(p, at + FIRST_AT)
    found.time_ms = <long long>bits.le64(p, at + TIME_MS_AT)
    found.messages = bits.le32(p, at + MESSAGES_AT)
    found.meta_len = bits.le32(p, at + META_LEN_AT)
    found.body_len = bits.le32(p, at + BODY_LEN_AT)
    found.length = SIZE + ENTRY_SIZE * found.messages + found.meta_len + found.body_len
    if bits.le32(p, at + MAGIC_AT) != MAGIC or bits.le32(p, at + LENGTH_AT) != found.length or not found.messages or found.time_ms < 0:
        found.length = 0
    return found
