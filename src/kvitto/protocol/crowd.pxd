cdef class Crowd:
    cdef public object first
    cdef public bint serving, due
    cdef object _broker, _has_room, _waiting
