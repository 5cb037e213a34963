cimport cython
from kvitto.broker.state cimport TurnState
from kvitto.protocol.driver cimport Driver
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf
from kvitto.protocol.channel cimport Channel
from kvitto.protocol.confirms cimport Confirms
from kvitto.protocol.output cimport Output

cdef unsigned int _PUBLISH, _ACK
cdef int _KIND_ACK, _UNKNOWN, _MORE, _RUNNING, _CLOSING
cdef Py_ssize_t _READ_BUDGET, _CHANGES_LATER

cdef class Connection:
    cdef object __weakref__
    cdef public TurnState broker
    cdef public Driver driver
    cdef public Confirms confirms
    cdef public object hub, transport, user, vhost, _secret, name, external
    cdef public str peer, refusal
    cdef public bint loopback, tls, can_cancel, can_block, told_blocked, wants_offsets, stalled, answering, choked, yielded, publisher, blocked, held_back, failed
    cdef public Output output
    cdef public int state
    cdef public Py_ssize_t frame_max, channel_max, heartbeat, _at, quiet_in, quiet_out, unfinished, begun, buffered, in_transactions, budget, caught_up, consumers
    cdef public dict client, channels, queues, groups
    cdef public bytes rest
    cdef public Channel _last
    cdef public int _last_number
    cdef public unsigned long long received_bytes, sent_bytes, started_ms, since_ms, sent_at_beat, _looked_at

    @cython.locals(broker=TurnState, begun=double)
    cpdef receive(self, Buf box, Py_ssize_t n)
    cdef bint _is_heartbeat(self, const unsigned char* p) noexcept
    cdef _take(self, Buf box, Py_ssize_t n)
    cpdef spend(self, Py_ssize_t cost)
    @cython.locals(buf=Buf)
    cpdef flush(self)
    @cython.locals(p="const unsigned char*", pos=Py_ssize_t, most=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t, kind=int, number=int, c=Channel, method="unsigned int", found=int)
    cdef scan(self, Buf box, Py_ssize_t n)
    @cython.locals(body=Buf, key=Py_ssize_t, k=Py_ssize_t, options=int, key_len=Py_ssize_t, size=Py_ssize_t, body_len="unsigned long long", b=Py_ssize_t)
    cdef Py_ssize_t publish(self, Channel c, const unsigned char* p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t n) except? -1
    @cython.locals(c=Channel, body=Buf)
    cdef _body(self, int number, const unsigned char* p, Py_ssize_t at, Py_ssize_t n)
    @cython.locals(key=bytes, props=bytes, body=Buf)
    cdef _publish_whole(self, Channel c)
