cimport cython

cdef class Gathering:
    cdef double _usual, _began
    cdef Py_ssize_t _waited

    @cython.locals(waited=Py_ssize_t, in_vain=bint)
    cpdef begun(self, double now, Py_ssize_t count)
    @cython.locals(end=double)
    cpdef double until(self, double now, Py_ssize_t count, double sync_s) except? -1
