cdef class Driver:
    cpdef schedule(self)
