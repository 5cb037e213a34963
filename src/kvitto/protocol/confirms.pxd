cimport cython
from kvitto.broker.routing.route cimport Route
from kvitto.broker.turning cimport Turning
from kvitto.protocol.channel cimport Channel

cdef class Published:
    cdef public Py_ssize_t changes
    cdef public Channel channel
    cdef public unsigned long long sequence, count
    cdef public long long arrived_us
    cdef public bint unsynced
    cdef public Route route
    cdef public list used

cdef class Confirms:
    cdef object __weakref__
    cdef public Turning broker
    cdef public list touched
    cdef public unsigned long long received, answered
    cdef dict _durable, _late
    cdef object _published, _waiting
    cdef list _unwritten, _late_waiting

    @cython.locals(channel=Channel, changes=Py_ssize_t, published=Published)
    cpdef note_published(self)
    @cython.locals(published=Published, channel=Channel, waiting=list)
    cpdef answer(self)
    @cython.locals(channel=Channel)
    cdef _written(self, Published published, list waiting)
    @cython.locals(now_us="long long", published=Published, channel=Channel)
    cpdef _synced(self, list waiting)
    cdef _note_wait(self, Published published, long long now_us)
    @cython.locals(before="unsigned long long")
    cdef _answer(self, Channel channel, object sequence)
