cdef class Crowd:
    cdef public object first, serving
    cdef public bint due
    cdef object _broker, _has_room, _waiting
