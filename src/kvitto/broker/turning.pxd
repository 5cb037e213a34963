cimport cython
from kvitto.base.clock cimport Clock
from kvitto.store.store cimport Store
from kvitto.broker.queues.queue cimport Queue

cdef class Turning:
    cdef object __weakref__
    cdef public Store store
    cdef public Clock clock
    cdef public object timers, faults, jobs, readers, records, dead_letters, stages, on_full
    cdef public dict queues, unwritten, pressed, slow, unmarked
    cdef public object dirty, late
    cdef public long long now_ms, set_back_ms
    cdef public Py_ssize_t written, turns, allowance, left
    cdef public bint replaying, clock_is_read, behind, full, applying
    cdef double _queue_size
    cdef object _applied, _applied_to_slow
    cdef unsigned long long _noted
    cdef list _pool

    cpdef read_clock(self)
    cpdef bint idle(self) except -1
    cpdef bint unfinished(self) except -1
    cpdef turn(self, Py_ssize_t most=*)
    @cython.locals(queue=Queue, size=Py_ssize_t, cost=Py_ssize_t)
    cdef Py_ssize_t _write_dirty(self, Py_ssize_t most) except? -1
    cdef _pump_late(self)
    cpdef bint flush(self, Queue queue) except? 0
    @cython.locals(queue=Queue, unmarked=dict)
    cpdef write_marks(self)
