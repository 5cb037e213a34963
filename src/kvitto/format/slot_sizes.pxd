# The inline twins of slot_sizes.py for compiled callers. The numbers are those of layouts.SLOT_SIZES; tests/format/test_twins.py compares
# them.
from kvitto.wire cimport bits

cdef enum:
    SIZE = 64
    SIZE_AT = 0
    ACKS_SIZE_AT = 8
    END_AT = 16
    CHECKSUM_AT = 56

cdef inline void put(unsigned char* p, unsigned long long size, unsigned long long acks_size, unsigned long long end) noexcept nogil:
    bits.put_le64(p, SIZE_AT, size)
    bits.put_le64(p, ACKS_SIZE_AT, acks_size)
    bits.put_le64(p, END_AT, end)
cdef inline void put_checksum(unsigned char* p, unsigned long long checksum) noexcept nogil:
    bits.put_le64(p, CHECKSUM_AT, checksum)
