cimport cython
from kvitto.broker.latencies cimport Latencies
from kvitto.broker.queues.backlog cimport Backlog
from kvitto.broker.queues.consumer cimport Consumer
from kvitto.broker.queues.queue cimport Queue
from kvitto.broker.queues.rota cimport Rota
from kvitto.broker.queues.tail cimport Tail
from kvitto.store.batch cimport Batch
from kvitto.store.log cimport Log
from kvitto.store.settlements cimport Settlements

cdef int _ACKED
cdef Py_ssize_t _AGAIN_COST

cdef class WorkQueue(Queue):
    cdef readonly Backlog backlog
    cdef public Settlements settlements
    cdef public Rota rota
    cdef public object leaving, retries, parked
    cdef public Py_ssize_t moving, coming, coming_bytes, estimates, burst
    cdef public long long max_length, max_bytes, delivery_limit

    cpdef long long counted(self) except? -1
    cpdef bint over(self, long long more, long long more_bytes) except -1
    @cython.locals(backlog=Backlog, c=Consumer, w=Batch, i=Py_ssize_t, n=Py_ssize_t, k=Py_ssize_t, left=Py_ssize_t, latencies=Latencies, run=Py_ssize_t, first="unsigned long long", waited_us="long long")
    cpdef deliver_ready(self)
    cdef bint given(self, Consumer c, Py_ssize_t k) noexcept
    cdef long long waited(self, Batch w) except? -1
    @cython.locals(offset="unsigned long long", size=Py_ssize_t, unacked=bint)
    cdef Py_ssize_t took(self, Consumer c, Batch w, Py_ssize_t i, Py_ssize_t k) except? -1
    @cython.locals(rota=Rota, c=Consumer)
    cdef Consumer pick(self)
    @cython.locals(end="unsigned long long", tail=Tail)
    cpdef settle(self, unsigned long long offset, unsigned long long n, int outcome, unsigned int deliveries=*)
    @cython.locals(backlog=Backlog, w=Batch, i=Py_ssize_t, before="unsigned long long")
    cpdef bint get(self, Consumer c) except -1
    @cython.locals(shown=bint)
    cpdef flush(self)
    cdef _flush(self, unsigned long long delivered)
    @cython.locals(log=Log)
    cdef _write_open(self, Batch batch)
    @cython.locals(mark="unsigned long long", log=Log)
    cdef _write_settlements(self, unsigned long long end)
    @cython.locals(above="long long")
    cdef bint _any_below(self, unsigned long long mark) except -1
