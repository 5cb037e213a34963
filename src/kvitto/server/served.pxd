cdef class Served:
    cdef public unsigned long long served_in

    cpdef ready(self, int events)
