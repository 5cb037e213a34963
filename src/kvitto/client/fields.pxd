cimport cython
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef int _DEPTH_MAX, _HEADERS, _DELIVERY_MODE, _PRIORITY, _TIMESTAMP, _FIELDS
cdef long long _INT_MIN, _INT_MAX

cpdef dict read_fields(bytes data, tuple names)

cdef class Reader:
    cdef bytes data
    cdef const unsigned char* p
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t take(self, Py_ssize_t n) except? -1
    @cython.locals(at=Py_ssize_t, n=Py_ssize_t)
    cdef str short(self)
    @cython.locals(flags="unsigned int", k=int, found=dict)
    cdef dict fields(self, tuple names)
    @cython.locals(stop=Py_ssize_t, table=dict)
    cdef dict table(self, int depth)
    @cython.locals(stop=Py_ssize_t, items=list)
    cdef list array(self, int depth)
    @cython.locals(n=Py_ssize_t)
    cdef Py_ssize_t enter(self, int depth) except? -1
    @cython.locals(at=Py_ssize_t, kind="unsigned int", n=Py_ssize_t, start=Py_ssize_t, stop=Py_ssize_t)
    cdef value(self, int depth)

@cython.locals(out=Buf, flags="unsigned int", k=int)
cpdef bytes write_fields(properties, tuple names)
@cython.locals(raw=bytes, n=Py_ssize_t)
cdef int put_short(Buf out, str text, str what) except? -1
@cython.locals(at=Py_ssize_t)
cdef int put_table(Buf out, table, int depth) except? -1
@cython.locals(raw=bytes, n=Py_ssize_t, at=Py_ssize_t, number="long long")
cdef int put_item(Buf out, value, int depth) except? -1
cdef int put_kind(Buf out, unsigned int kind) except? -1
