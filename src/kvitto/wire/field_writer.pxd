cimport cython
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef int _DEPTH_MAX, _DIGITS_MAX
cdef long long _INT_MIN, _INT_MAX, _DAY

@cython.locals(out=Buf)
cpdef bytes encode_table(table)
@cython.locals(exact=str, raw=bytes, n=Py_ssize_t)
cpdef int put_short(Buf out, text, str what) except? -1
@cython.locals(at=Py_ssize_t)
cpdef int put_table(Buf out, table, int depth) except? -1
@cython.locals(at=Py_ssize_t)
cdef int put_array(Buf out, items, int depth) except? -1
cpdef int put_value(Buf out, value, int depth) except? -1
@cython.locals(number="long long")
cdef int put_int(Buf out, value) except? -1
@cython.locals(seconds="long long")
cdef int put_time(Buf out, value) except? -1
@cython.locals(raw=bytes, n=Py_ssize_t, i=Py_ssize_t, point=Py_ssize_t, scale="unsigned int", unscaled="long long", c="unsigned int")
cdef int put_decimal(Buf out, value) except? -1
@cython.locals(n=Py_ssize_t)
cdef int put_long_string(Buf out, bytes raw) except? -1
cpdef int put_kind(Buf out, unsigned int kind) except? -1
