cdef class TurnPart:
    cdef object __weakref__
    cdef public object waiting
