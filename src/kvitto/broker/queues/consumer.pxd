from kvitto.store.batch cimport Batch

cdef class Consumer:
    cdef public object queue, progress, line
    cdef public Consumer before, after
    cdef public unsigned long long serial
    cdef public str tag
    cdef public bint no_ack, exclusive, active, lent, idle, counted
    cdef public int priority
    cdef public long long timeout_ms
    cdef public dict arguments
    cdef public Py_ssize_t unacked, delivered
    cpdef Py_ssize_t credit(self) except? -1
    cpdef Py_ssize_t deliver(self, Batch batch, Py_ssize_t i, Py_ssize_t n, int redelivered) except? -1
    cpdef deliver_again(self, bytes key, bytes props, object body, unsigned long long offset)
