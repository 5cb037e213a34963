cimport cython
from kvitto.format cimport prefix, settlement
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef Py_ssize_t SMALL

cdef class Settlements:
    cdef public Buf entries
    cdef public unsigned long long lowest, highest
    @cython.locals(b=Buf, e=Py_ssize_t, word="unsigned int", n="unsigned long long", left="unsigned long long", at="unsigned long long")
    cpdef add(self, unsigned long long offset, unsigned long long count, unsigned int outcome, unsigned int deliveries)
    @cython.locals(b=Buf, e=Py_ssize_t, settled=Py_ssize_t, lo="unsigned long long", hi="unsigned long long", word="unsigned int", outcome="unsigned int")
    cpdef Py_ssize_t take(self, unsigned long long start, unsigned long long end, Buf out) except? -1
    cpdef cut(self, unsigned long long end)
    cpdef clear(self)

@cython.locals(fresh=Py_ssize_t, end=Py_ssize_t, i=Py_ssize_t, p="unsigned char*", old="unsigned int")
cpdef Py_ssize_t set_bits(bytearray bitmap, Py_ssize_t span, Py_ssize_t start, Py_ssize_t count)
@cython.locals(size=Py_ssize_t, count=Py_ssize_t, head=bytearray, whole=bytearray)
cpdef list block(Buf entries, unsigned long long time_ms, unsigned long long mark, unsigned long long durable)
