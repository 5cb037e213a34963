cimport cython
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

@cython.locals(out=Buf)
cpdef bytes canonical(value)
cdef int put(Buf out, value) except? -1
cdef int put_table(Buf out, table) except? -1
@cython.locals(number="unsigned long long")
cdef int put_int(Buf out, value) except? -1
@cython.locals(n=Py_ssize_t)
cdef int put_bytes(Buf out, bytes raw) except? -1
cdef int put_kind(Buf out, unsigned int kind) except? -1
cdef int put_size(Buf out, Py_ssize_t n) except? -1
