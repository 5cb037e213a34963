cimport cython
from kvitto.broker.queues.counted cimport Counted
from kvitto.broker.queues.tail cimport Tail
from kvitto.broker.state cimport TurnState
from kvitto.store.batch cimport Batch

cdef class Backlog:
    cdef public object log, keeper, redeliveries, outline, _ahead, _behind
    cdef TurnState _turns
    cdef public unsigned long long cursor, flagged_below
    cdef public bint ranked, _has_read
    cdef public int priority_max
    cdef readonly Tail tail
    cdef public Counted requeued
    cdef public Batch front
    cpdef long long ready(self) except? -1
    cpdef bint any_ready(self) except -1
    @cython.locals(f=Batch, t=Batch)
    cpdef Batch window(self)
    cpdef keep_front(self, Batch batch, bint wanted)
    cpdef release_unused(self)
    cpdef release_front(self)
