cimport cython
from kvitto.client.codec cimport Scanner, Sink, put_acks
from kvitto.client.columns cimport Window
from kvitto.base cimport rawio
from kvitto.base cimport ticks
from kvitto.wire.buf cimport Buf

cdef Py_ssize_t _RECEIVE_BYTES
cdef unsigned int _IN, _OUT
cdef Buf RECEIVED

@cython.locals(worker=Worker, events="unsigned int")
cpdef serve(dict workers, list ready)

cdef class Worker:
    cdef public object connection
    cdef public object channel
    cdef public int fd
    cdef public bint tls
    cdef public Scanner scanner
    cdef public Sink sink
    cdef public Buf out
    cdef public bint unsent
    cdef public object epoll
    cdef public bint watching
    cdef public long long due
    cpdef start(self)
    cpdef bint readable(self) except -1
    cpdef bint write(self) except -1
    cpdef watch(self, bint writable)
    @cython.locals(own=Buf, inp=Buf, count=Py_ssize_t)
    cdef receive(self)
    cdef check(self)
    @cython.locals(out=Buf, count=Py_ssize_t)
    cpdef bint push(self) except -1
    cpdef beat(self)

cdef class Publisher(Worker):
    cdef public object quota
    cdef public Window window
    cdef public long long window_size
    cdef public long long tx_size
    cdef public long long tx_left
    cdef public bint committing
    cdef public bint paced
    cdef public bint latency
    cdef public long long published
    cdef public object template
    cdef public long long size
    cdef public long long chunk
    @cython.locals(count="long long")
    cdef long long allowed(self) except? -1
    @cython.locals(count="long long")
    cpdef bint write(self) except -1
    cpdef bint readable(self) except -1

cdef class Consumer(Worker):
    cdef public long long step
    cdef public long long tx_size
    cdef public bint committing
    cdef public long long acked
    cdef public object queue
    cpdef start(self)
    cpdef bint readable(self) except -1
    cpdef bint write(self) except -1
    @cython.locals(due="long long")
    cdef ack(self, long long received)
