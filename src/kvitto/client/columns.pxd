cimport cython
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef unsigned int _FINE

cdef class Column:
    cdef public Buf data
    cdef public Buf ends
    @cython.locals(p="const unsigned char*", n=Py_ssize_t, last=Py_ssize_t, end=Py_ssize_t, k=Py_ssize_t, wrong=bint)
    cpdef check(self)
    @cython.locals(data=Buf, ends=Buf)
    cdef int put(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t n) except? -1

cdef class Batch:
    cdef public Py_ssize_t count
    cdef public Buf tags
    cdef public Buf flags
    cdef public Column consumer_tags
    cdef public Column exchanges
    cdef public Column routing_keys
    cdef public Column properties
    cdef public Column bodies
    @cython.locals(h="unsigned char*", c=Py_ssize_t, t=Py_ssize_t, e=Py_ssize_t, r=Py_ssize_t, tags=Buf, flags=Buf)
    cdef int add(self, Buf head, Buf props, const unsigned char* p, Py_ssize_t i, Py_ssize_t n) except? -1

cdef class Field:
    cdef public unsigned int bit
    cdef public Column column
    cdef public bytes present
    cdef public bint prefixed

@cython.locals(out=Column, size="long long", field=Field, column=Column, present=bytes, p="unsigned char*", borders="unsigned char*", marks="const unsigned char*", at=Py_ssize_t, row=Py_ssize_t, flags="unsigned int", i=Py_ssize_t, k=Py_ssize_t, start=Py_ssize_t, n=Py_ssize_t)
cpdef Column pack_fields(Py_ssize_t count, list fields)

@cython.locals(out=Column, b="const unsigned char*", marks="const unsigned char*", pairs=Py_ssize_t, count=Py_ssize_t, size="long long", p="unsigned char*", i=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t, at=Py_ssize_t, last=Py_ssize_t, start=Py_ssize_t, n=Py_ssize_t)
cpdef Column pack_tables(bytes borders, Column keys, Column values, bytes present=*)

cdef class Window:
    cdef public Buf ring
    cdef public unsigned long long mask
    cdef public unsigned long long low
    cdef public unsigned long long next
    cdef public long long outstanding
    cdef public unsigned long long acked
    cdef public unsigned long long nacked
    cdef public unsigned long long unexpected
    cdef public list refused
    @cython.locals(first="unsigned long long")
    cpdef unsigned long long sent(self, unsigned long long count) except? 0
    @cython.locals(ring="unsigned char*", mask="unsigned long long", settled="long long", last="unsigned long long", k="unsigned long long")
    cpdef long long settle(self, unsigned long long tag, bint multiple, bint ok) except? -1

cdef class Latencies:
    cdef public Buf counts
    cdef public unsigned long long total
    cdef public unsigned long long largest
    @cython.locals(v="unsigned long long", e=int, i=Py_ssize_t)
    cpdef int add(self, long long value) except? -1
