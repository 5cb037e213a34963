cimport cython
from kvitto.wire cimport bits

cdef int _DEPTH_MAX, _BYTES_MAX
cdef long long _DAY, _LAST_SECOND

@cython.locals(reader=Reader)
cpdef tuple read_table(bytes data, Py_ssize_t at)
@cython.locals(reader=Reader)
cpdef tuple read_value(bytes data, Py_ssize_t at, int depth)

cdef class Reader:
    cdef bytes data
    cdef const unsigned char* p
    cdef readonly Py_ssize_t at
    cdef Py_ssize_t end
    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t take(self, Py_ssize_t n) except? -1
    @cython.locals(at=Py_ssize_t, n=Py_ssize_t)
    cpdef str short(self)
    @cython.locals(stop=Py_ssize_t, table=dict)
    cpdef dict table(self, int depth)
    @cython.locals(stop=Py_ssize_t, items=list)
    cdef list array(self, int depth)
    @cython.locals(n=Py_ssize_t)
    cpdef Py_ssize_t enter(self, int depth) except? -1
    @cython.locals(at=Py_ssize_t, kind="unsigned int", n="long long", start=Py_ssize_t, raw=bytes)
    cpdef value(self, int depth)
    @cython.locals(at=Py_ssize_t, seconds="long long", days="long long", era="long long", years="long long", month="long long", day="long long")
    cdef time(self)

@cython.locals(c="unsigned int", low="unsigned int", high="unsigned int", more=int)
cdef bint is_text(const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept
