cimport cython
from kvitto.client.codec cimport Template, put_acks
from kvitto.client.columns cimport Batch, Column
from kvitto.base cimport ticks
from kvitto.perf.workers cimport Worker
from kvitto.wire cimport bits

cdef class Client(Worker):
    cdef public object quota
    cdef public unsigned long long published
    cdef public Template template
    cpdef bint readable(self) except -1
    cpdef bint write(self) except -1

cdef class Server(Worker):
    cdef public bint acks
    cdef public Py_ssize_t size
    cdef public object queue
    cdef public unsigned long long served
    cdef public dict answers
    cpdef start(self)
    cpdef bint readable(self) except -1
    @cython.locals(batch=Batch, k=Py_ssize_t, properties=bytes, template=Template)
    cpdef bint write(self) except -1
    cdef answer(self, bytes properties)
    cdef forget(self, Batch batch)
    cdef empty(self, Column column)
