cimport cython
from kvitto.wire cimport bits, check
from kvitto.wire.buf cimport Buf

cdef int _STRING

cdef class MessageKey:
    cdef public bint by_header
    cdef public long long ttl_ms
    cdef Buf _name, _ttl_name
    cdef Py_ssize_t _ttl_at, _ttl_end

    @cython.locals(flags="unsigned int", end=Py_ssize_t, i=Py_ssize_t, value=Py_ssize_t, value_end=Py_ssize_t, size=Py_ssize_t, bit="unsigned int")
    cpdef bytes read(self, const unsigned char* p, Py_ssize_t at, Py_ssize_t n)
    @cython.locals(found=Py_ssize_t, size=Py_ssize_t, value=Py_ssize_t, after=Py_ssize_t)
    cdef Py_ssize_t look(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept
