cimport cython
from kvitto.base cimport ticks
from kvitto.broker.latencies cimport Latencies
from kvitto.server cimport ready
from kvitto.server.served cimport Served

cdef unsigned int _IN, _OUT
cdef int _READ, _WRITE
cdef double LONGEST_S
cdef int READY_MAX, ROUNDS, POLLS
cdef double MORE_S
cdef dict NOBODY

@cython.locals(served=bint, i=int, bits="unsigned int", events=int)
cdef bint serve(dict peers, bytearray box, int count, dict keys, list found, unsigned long long number) except -1
@cython.locals(peer=Served)
cdef bint handle(dict peers, int fd, int events, dict keys, list found, unsigned long long number) except -1

cdef class Rounds:
    cdef public object turn, on_due
    cdef public double due
    cdef public bint serving, fine
    cdef public dict peers, keys
    cdef public list found
    cdef public Latencies latencies
    cdef object _epoll, _other
    cdef int _fd
    cdef bytearray _events
    cdef double _share_ends
    cdef unsigned long long _number

    @cython.locals(served=bint, due=bint, began=double, now=double, count=int, polls=int, more=bint, peers=dict, found=list)
    cpdef bint round(self, double timeout) except? 0
    @cython.locals(end=double, served=bint)
    cpdef follow(self, object loop, double timeout)
