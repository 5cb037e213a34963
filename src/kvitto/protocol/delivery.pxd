cimport cython
from kvitto.format cimport entry
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf
from kvitto.store.batch cimport Batch
from kvitto.broker.queues.backlog cimport Backlog
from kvitto.broker.queues.consumer cimport Consumer
from kvitto.protocol.channel cimport Channel
from kvitto.protocol.crowd cimport Crowd
from kvitto.protocol.output cimport Output

cdef Py_ssize_t _LIMIT, _LARGE, _PLENTY, _KEY_LEN, _HEADER
cdef bytes _KEY

cdef class ChannelConsumer(Consumer):
    cdef public Channel channel
    cdef public Output output
    cdef public Py_ssize_t prefetch
    cdef public unsigned int slot
    cdef unsigned long long tag_before
    cdef Py_ssize_t bytes_before
    cdef Buf tag_bytes
    @cython.locals(out=Output, c=Channel, left=Py_ssize_t, room=Py_ssize_t, crowd=Crowd)
    cpdef Py_ssize_t credit(self) except? -1
    cdef bint comes_later(self, Crowd crowd) except -1
    @cython.locals(out=Output, c=Channel, k=Py_ssize_t, message=entry.Message, m=Py_ssize_t, b=Py_ssize_t, body_len=Py_ssize_t, props_len=Py_ssize_t, key_len=Py_ssize_t, tag="unsigned long long")
    cpdef Py_ssize_t deliver(self, Batch batch, Py_ssize_t i, Py_ssize_t n, int redelivered) except? -1
    @cython.locals(out=Output, c=Channel, tag="unsigned long long")
    cpdef deliver_again(self, bytes key, bytes props, object body, unsigned long long offset)

cdef class StreamConsumer(ChannelConsumer):
    cdef public Buf props
    @cython.locals(out=Output, c=Channel, props=Buf, k=Py_ssize_t, message=entry.Message, m=Py_ssize_t, b=Py_ssize_t, body_len=Py_ssize_t, props_len=Py_ssize_t, key_len=Py_ssize_t, tag="unsigned long long", offset="unsigned long long")
    cpdef Py_ssize_t deliver(self, Batch batch, Py_ssize_t i, Py_ssize_t n, int redelivered) except? -1
    @cython.locals(props=Buf, q="unsigned char*", flags="unsigned int", end=Py_ssize_t, i=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, k=Py_ssize_t, o=Py_ssize_t)
    cdef bint with_offset(self, const unsigned char* p, Py_ssize_t at, Py_ssize_t n, unsigned long long offset, bint look) except -1
    cpdef edited(self, bytes props, unsigned long long offset)

cdef class OffsetConsumer(StreamConsumer):
    cdef public bint awaiting
    cdef readonly Backlog backlog
    @cython.locals(backlog=Backlog, left=Py_ssize_t)
    cpdef Py_ssize_t credit(self) except? -1
    cpdef deliver_again(self, bytes key, bytes props, object body, unsigned long long offset)

cdef class GetConsumer(Consumer):
    cdef public Channel channel
    cdef public unsigned int slot
    cdef public bint offsets
    cdef unsigned long long tag_before
    cdef Py_ssize_t bytes_before

cdef class RangeConsumer(Consumer):
    cdef public Channel channel
    cdef public Output output
    cdef Py_ssize_t bytes_before
    cdef Buf tag_bytes
    @cython.locals(out=Output, c=Channel, k=Py_ssize_t, message=entry.Message, m=Py_ssize_t, b=Py_ssize_t, body_len=Py_ssize_t, props_len=Py_ssize_t, key_len=Py_ssize_t, tag="unsigned long long")
    cpdef Py_ssize_t deliver(self, Batch batch, Py_ssize_t i, Py_ssize_t n, int redelivered) except? -1
