cimport cython

cdef Py_ssize_t _DISCARDED
cdef object _take

cdef class Buf:
    cdef public bytearray data
    cdef unsigned char* p
    cdef readonly Py_ssize_t cap
    cdef public Py_ssize_t n
    @cython.locals(need=Py_ssize_t)
    cpdef reserve(self, Py_ssize_t more)
    @cython.locals(cap=Py_ssize_t, fresh=bytearray)
    cpdef grow(self, Py_ssize_t need)
    @cython.locals(need=Py_ssize_t)
    cpdef reserve_in_place(self, Py_ssize_t more)
    cpdef widen(self, Py_ssize_t need)
    @cython.locals(k=Py_ssize_t)
    cpdef add(self, source)
    @cython.locals(rest=Py_ssize_t)
    cpdef drop(self, Py_ssize_t k)
    cpdef clear(self, Py_ssize_t keep=*)
    cpdef detach(self)
    cdef _renew(self, Py_ssize_t capacity)
