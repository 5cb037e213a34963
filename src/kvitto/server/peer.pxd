cimport cython
from kvitto.protocol.connection cimport Connection
from kvitto.base cimport rawio
from kvitto.server.driving cimport Driving
from kvitto.server.served cimport Served
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef int _READ, _WRITE
cdef Py_ssize_t _INBOX, _LEAST_READ, _MUCH, _AGAIN

cdef class Peer(Served):
    cdef object __weakref__
    cdef public Driving server
    cdef object _poller, _socket, _unsent
    cdef public Connection connection
    cdef int _fd, _watched
    cdef bint _tls, _reading, _done, _ending, _paused, _throttled

    cpdef ready(self, int events)
    @cython.locals(wanted=int)
    cdef _watch(self)
    @cython.locals(connection=Connection, rest=bytes, at=Py_ssize_t, box=Buf, n=Py_ssize_t, paused=bint)
    cdef _read(self)
    @cython.locals(n=Py_ssize_t)
    cpdef bint send(self, Buf buf) except? 0
    @cython.locals(n=Py_ssize_t)
    cpdef bint write(self, object data) except? 0
    cdef Py_ssize_t _send(self, object data) except? -1
    cdef _stop_reading(self)
    cdef _read_on(self)
