# Inline twins of settlement.py for compiled callers. The numbers are those of layouts.SETTLEMENT and layouts.BLOCK;
# tests/format/test_twins.py compares them.
from kvitto.wire cimport bits

cdef enum:
    SIZE = 16
    OFFSET_AT = 0
    WORD_AT = 8
    DELIVERIES_AT = 12
    COUNT_BITS = 24
    COUNT_MAX = 0xFFFFFF
    REDELIVERED = 16
    BLOCK_SIZE = 40
    BLOCK_MAGIC_AT = 0
    BLOCK_LENGTH_AT = 4
    BLOCK_TIME_MS_AT = 16
    BLOCK_MARK_AT = 24
    BLOCK_ENTRIES_AT = 32
    BLOCK_DURABLE_AT = 36
    BLOCK_MAGIC = 0x3153564B  # "KVS1"

cdef inline unsigned long long offset(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le64(p, e + OFFSET_AT)
cdef inline unsigned int word(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le32(p, e + WORD_AT)
cdef inline unsigned int count_of(unsigned int word) noexcept nogil:
    return word & <unsigned int>COUNT_MAX
cdef inline unsigned int outcome_of(unsigned int word) noexcept nogil:
    return word >> <unsigned int>COUNT_BITS
cdef inline unsigned int deliveries(const unsigned char* p, Py_ssize_t e) noexcept nogil:
    return bits.le32(p, e + DELIVERIES_AT)
cdef inline void put(unsigned char* p, Py_ssize_t e, unsigned long long offset, unsigned long long count, unsigned int outcome, unsigned int deliveries) noexcept nogil:
    bits.put_le64(p, e + OFFSET_AT, offset)
    bits.put_le32(p, e + WORD_AT, <unsigned int>count | outcome << COUNT_BITS)
    bits.put_le32(p, e + DELIVERIES_AT, deliveries)
cdef inline void put_count(unsigned char* p, Py_ssize_t e, unsigned long long count, unsigned int outcome) noexcept nogil:
    bits.put_le32(p, e + WORD_AT, <unsigned int>count | outcome << COUNT_BITS)
cdef inline void put_block(unsigned char* p, Py_ssize_t length, unsigned long long time_ms, unsigned long long mark, Py_ssize_t entries, unsigned long long durable) noexcept nogil:
    bits.put_le32(p, BLOCK_MAGIC_AT, BLOCK_MAGIC)
    bits.put_le32(p, BLOCK_LENGTH_AT, <unsigned int>length)
    bits.put_le64(p, BLOCK_TIME_MS_AT, time_ms)
    bits.put_le64(p, BLOCK_MARK_AT, mark)
    bits.put_le32(p, BLOCK_ENTRIES_AT, <unsigned int>entries)
    bits.put_le32(p, BLOCK_DURABLE_AT, <unsigned int>min(durable, <unsigned long long>0xFFFFFFFF))
