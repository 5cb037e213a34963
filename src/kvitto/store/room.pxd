cdef class Room:
    cdef object _disk
    cdef public bint short
    cdef public Py_ssize_t _left

    cpdef take(self, Py_ssize_t size, str path)
