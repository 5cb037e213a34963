cimport cython
from kvitto.broker.turning cimport Turning
from kvitto.protocol.driver cimport Driver
from kvitto.protocol.confirms cimport Confirms
from kvitto.protocol.output cimport Output
from kvitto.protocol.connection cimport Connection

cdef class Hub:
    cdef object __weakref__
    cdef dict __dict__
    cdef public Turning broker
    cdef public Driver driver
    cdef public dict connections
    cdef public list outputs
    cdef public Confirms confirms
    cdef object _crowds, _yielded
    cdef bint _is_long
    cdef int _put_off

    @cython.locals(puts_off=bint)
    cpdef turn(self)
    cpdef bint unfinished(self) except -1
    cpdef after_sync(self)
    @cython.locals(output=Output, owner=Connection)
    cpdef flush(self)
