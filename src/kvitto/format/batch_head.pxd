# The inline twin of batch_head.py for compiled callers. The numbers are those of layouts.BATCH; tests/format/test_twins.py compares them.
from kvitto.wire cimport bits

cdef enum:
    MAGIC_AT = 0
    LENGTH_AT = 4
    FIRST_AT = 16
    TIME_MS_AT = 24
    MESSAGES_AT = 32
    META_LEN_AT = 36
    BODY_LEN_AT = 40
    JOURNAL_AT = 48
    DURABLE_AT = 56
    MAGIC = 0x3142564B  # "KVB1"

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
