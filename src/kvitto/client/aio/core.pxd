cimport cython
from kvitto.client.codec cimport Scanner, Sink, put_publish, put_settle
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef unsigned int _DELIVER, _GET_OK, _RETURN, _ACK, _REJECT, _NACK, _UNSETTLED, _ACKED
cdef Py_ssize_t _CHUNK

cdef class Many:
    cdef public bytes exchange
    cdef public bytes routing_key
    cdef public unsigned int flags
    cdef public bytes properties
    cdef public long long sent
    cdef public long long settled
    cdef public list failed
    cdef public list runs
    cdef public long long wake_at
    cdef public object waiter
    cdef int note(self, unsigned long long tag, object error) except? -1
    cpdef wake(self)

cdef class Waiting:
    cdef public bytes exchange
    cdef public bytes routing_key
    cdef public unsigned int flags
    cdef public bytes properties
    cdef public bytes body
    cdef public object owner
    cdef public long long index
    cdef public object returned

cdef class ConsumerCore:
    cdef public object messages
    cdef public object waiter
    cdef public bint no_ack
    cdef public IncomingMessage last
    cpdef IncomingMessage take(self)
    cpdef wake(self)

cdef class IncomingMessage:
    cdef ChannelCore channel
    cdef readonly unsigned long long delivery_tag
    cdef readonly bint redelivered
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly str consumer_tag
    cdef readonly bytes raw_properties
    cdef readonly bytes body
    cdef readonly unsigned long message_count
    cdef bint unsettled
    cdef object _properties
    @cython.locals(channel=ChannelCore)
    cdef bint _settle(self, unsigned int method, unsigned int flags) except -1

cdef class Processing:
    cdef IncomingMessage message
    cdef bint requeue

cdef end(IncomingMessage message, object error, bint requeue)

cdef class ChannelCore(Sink):
    cdef public ConnectionCore connection
    cdef public object new_future
    cdef public bint alive
    cdef public bint open
    cdef public bint confirms
    cdef public bint keep
    cdef public list ring
    cdef public unsigned long long low
    cdef public unsigned long long next
    cdef public dict mandatory
    cdef public dict consumers
    cdef public ConsumerCore last_consumer
    cdef bytes last_consumer_tag
    cdef str consumer_name
    cdef bytes last_exchange
    cdef str exchange_name
    cdef bytes last_key
    cdef str key_name
    cdef Buf states
    cdef unsigned long long states_mask
    cdef public unsigned long long unacked_low
    cdef public unsigned long long tag_next
    cdef public bint sequential
    cdef public bint combine
    cdef public list acks
    cdef public object new_message
    cdef public unsigned long long unexpected
    @cython.locals(e=bytes, r=bytes)
    cpdef publish(self, str exchange, str routing_key, unsigned int flags, bytes properties, bytes body, object waiter=*)
    @cython.locals(out=Buf, frame_max=Py_ssize_t, count="long long", first="unsigned long long", more=bint, plain=bint, exchange=bytes, key=bytes, properties=bytes, body=bytes, waiting=Waiting)
    cpdef bint publish_from(self, object messages, Many many, long long most) except -1
    cpdef Waiting remember(self, Waiting waiting)
    @cython.locals(mask="unsigned long long")
    cdef int enter(self, object entry) except? -1
    cdef widen(self)
    @cython.locals(ring=list, mask="unsigned long long", k="unsigned long long", last="unsigned long long")
    cdef int confirmed(self, unsigned long long tag, bint multiple, bint ok) except? -1
    @cython.locals(many=Many, waiting=Waiting)
    cdef int resolve(self, object entry, unsigned long long tag, bint ok) except? -1
    @cython.locals(h="const unsigned char*", k=Py_ssize_t, size=Py_ssize_t, c=Py_ssize_t, consumer=ConsumerCore, tag="unsigned long long", redelivered=int, message=IncomingMessage)
    cdef int deliver(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t n) except? -1
    cdef bint find_consumer(self, bytes tag) except -1
    cdef int note_delivery(self, unsigned long long tag, unsigned int state) except? -1
    cdef widen_states(self)
    cpdef release_delivery(self, unsigned long long tag)
    cpdef bint is_settled(self, unsigned long long tag) except -1
    cdef int ack(self, unsigned long long tag) except? -1
    cdef int settle_now(self, unsigned long long tag, unsigned int method, unsigned int flags) except? -1
    @cython.locals(acks=list, out=Buf, states="unsigned char*", mask="unsigned long long", count=Py_ssize_t, last="unsigned long long", k="unsigned long long", tag="unsigned long long")
    cpdef write_acks(self)
    @cython.locals(k="unsigned long long")
    cdef advance(self)

cdef class ConnectionCore(Scanner):
    cdef public Buf out
    cdef public object call_soon
    cdef public object flush
    cdef public bint scheduled
    cdef public list acking
    cdef public unsigned long long dropped
    cpdef schedule(self)
    @cython.locals(channel=ChannelCore)
    cpdef bytes take(self)
    cpdef received(self, Py_ssize_t count)
    @cython.locals(channel=ChannelCore)
    cdef int finish(self, Sink sink, const unsigned char* p, Py_ssize_t i, Py_ssize_t n) except? -1
    @cython.locals(channel=ChannelCore)
    cdef int confirm(self, Sink sink, unsigned long long tag, bint multiple, bint ok) except? -1
    cdef content(self, Sink sink, Buf source, Py_ssize_t i, Py_ssize_t n)
