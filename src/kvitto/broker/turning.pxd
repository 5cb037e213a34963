cimport cython
from kvitto.base.turn_part cimport TurnPart
from kvitto.broker.queues.later_writes cimport LaterWrites
from kvitto.broker.queues.queue cimport Queue
from kvitto.broker.state cimport TurnState

cdef Py_ssize_t _LEAST_COST, _QUEUE_COST

cdef class Turning(TurnState):
    cdef public TurnPart faults, jobs, readers, records, dead_letters, stages
    cdef public object on_full
    cdef public dict queues
    cdef public bint applying
    cdef double _queue_size
    cdef object _applied, _applied_to_slow
    cdef unsigned long long _noted

    cpdef bint idle(self) except -1
    cpdef bint unfinished(self) except -1
    @cython.locals(later_writes=LaterWrites, waiting=double)
    cpdef turn(self, Py_ssize_t most=*)
    @cython.locals(queue=Queue, size=Py_ssize_t, cost=Py_ssize_t, least=Py_ssize_t)
    cdef Py_ssize_t _write_dirty(self, Py_ssize_t most) except? -1
    cdef _pump_late(self)
    cpdef bint flush(self, Queue queue) except? 0
    @cython.locals(queue=Queue, unmarked=dict)
    cpdef write_marks(self)
