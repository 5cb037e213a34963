cdef class Timers:
    cdef object __weakref__
    cdef public long long now_ms
    cdef public object next_ms
    cdef public list _heap
    cdef dict _numbers, _calls
    cdef object _order, _out_of_time

    cdef _look(self)
