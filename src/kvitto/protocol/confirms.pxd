cimport cython
from kvitto.broker.turning cimport Turning
from kvitto.protocol.channel cimport Channel

cdef class Published:
    cdef public object changes
    cdef public list channels, waiting

cdef class Confirms:
    cdef object __weakref__
    cdef public Turning broker
    cdef public list touched
    cdef public unsigned long long answered
    cdef dict _durable, _late
    cdef object _published
    cdef list _unwritten, _late_waiting

    @cython.locals(published=Published, channel=Channel)
    cpdef note_published(self)
    @cython.locals(published=Published, channel=Channel)
    cpdef answer(self)
    cdef _written(self, Channel channel, object sequence, bint unsynced, list waiting)
    @cython.locals(before="unsigned long long")
    cdef _answer(self, Channel channel, object sequence)
