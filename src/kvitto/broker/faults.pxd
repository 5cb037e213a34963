cdef class Faults:
    cdef dict __dict__
    cdef object __weakref__
    cdef public list fresh, failed
