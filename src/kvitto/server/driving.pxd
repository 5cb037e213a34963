cimport cython
from kvitto.protocol.hub cimport Driver

cdef class Driving(Driver):
    cdef dict __dict__
    cdef object __weakref__
    cdef public object store, clock, broker, hub, poller, pacing
    cdef public object _loop, _syncer, _due, _lazy, _timer, _error
    cdef public bint _turn_wanted
    cdef public long long _timer_ms
    cdef public double _full_sync_at
    cdef public Py_ssize_t received, _heard

    cpdef schedule(self)
    cpdef _do_turn(self)
    @cython.locals(idle=bint, now=double)
    cdef _drive_sync(self)
    cdef bint _begin(self, bint everything, bint idle) except? 0
    cpdef _end_sync(self, object commit)
    @cython.locals(now_ms="long long")
    cdef _arm_timer(self)
