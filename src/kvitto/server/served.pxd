cdef class Served:
    cpdef ready(self, int events)
