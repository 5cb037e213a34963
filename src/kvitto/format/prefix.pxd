# The inline twin of prefix.py for compiled callers. The numbers are those of layouts.PREFIX; tests/format/test_twins.py compares them.
from kvitto.wire cimport bits

cdef enum:
    SIZE = 16
    CHECKSUM_AT = 8

cdef inline void put_checksum(unsigned char* p, unsigned long long checksum) noexcept nogil:
    bits.put_le64(p, CHECKSUM_AT, checksum)
