cimport cython
from kvitto.broker.routing.route cimport Route
from kvitto.broker.turning cimport Turning
from kvitto.protocol.channel cimport Channel

cdef class Confirms

cdef class Published:
    cdef public Py_ssize_t changes
    cdef public Channel channel
    cdef public unsigned long long sequence, count
    cdef public long long arrived_us
    cdef public bint unsynced
    cdef public Route route
    cdef public list used

    cdef note(self, Py_ssize_t changes, Channel channel, long long arrived_us)

cdef class Covered:
    cdef public Confirms confirms
    cdef public list published

cdef class Confirms:
    cdef object __weakref__
    cdef public Turning broker
    cdef public list touched
    cdef public unsigned long long received, answered
    cdef dict _durable, _late
    cdef object _waiting
    cdef list _published, _unwritten, _late_waiting

    @cython.locals(channel=Channel, changes=Py_ssize_t, published=Published)
    cpdef note_published(self)
    @cython.locals(published=Published, channel=Channel, covered=Covered, broker=Turning, count=Py_ssize_t, sequence="unsigned long long")
    cpdef answer(self)
    @cython.locals(published=list, taken=list)
    cdef list _take(self, Py_ssize_t count)
    @cython.locals(channel=Channel)
    cdef _written(self, Published published, Covered covered)
    @cython.locals(now_us="long long", published=Published, channel=Channel)
    cpdef synced(self, list covered)
    cdef _note_wait(self, Published published, long long now_us)
    @cython.locals(before="unsigned long long")
    cdef _answer(self, Channel channel, unsigned long long sequence)
