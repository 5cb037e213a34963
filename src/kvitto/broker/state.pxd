cimport cython
from kvitto.base cimport ticks
from kvitto.base.clock cimport Clock
from kvitto.broker.latencies cimport Latencies
from kvitto.broker.queues.later_writes cimport LaterWrites
from kvitto.broker.timers cimport Timers
from kvitto.store.batch cimport Batch
from kvitto.store.store cimport Store

cdef class TurnState:
    cdef object __weakref__
    cdef public Store store
    cdef public Clock clock
    cdef public Timers timers
    cdef public Latencies latencies
    cdef public dict unwritten, pressed, slow, unmarked
    cdef public LaterWrites later_writes
    cdef public object dirty, late
    cdef public long long now_ms, now_us, set_back_ms
    cdef public Py_ssize_t written, turns, allowance, left, changes_each, changes_left
    cdef public bint replaying, clock_is_read, behind, full, somebody_waits
    cdef public double turn_s, ends_at
    cdef list _pool

    cpdef Batch take_batch(self)
    cpdef give_batch(self, Batch batch)
    cpdef begin_time(self)
    cpdef end_time(self)
    cpdef bint out_of_time(self) except -1
    @cython.locals(now_ms="long long")
    cpdef read_clock(self)
