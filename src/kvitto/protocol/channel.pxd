cimport cython
from kvitto.broker.latencies cimport Timed
from kvitto.wire cimport bits
from kvitto.wire cimport check
from kvitto.wire.buf cimport Buf
from kvitto.broker.queues.consumer cimport Consumer
from kvitto.broker.queues.queue cimport Queue
from kvitto.broker.routing.route cimport Epoch, Route, Traffic
from kvitto.protocol.crowd cimport Crowd
from kvitto.protocol.output cimport Output

cdef Py_ssize_t _ENTRY, _MANY, _COPIES_BYTES
cdef unsigned int _UNCOMMITTED
cdef int _ACK, _REJECT, _AT_COMMIT, _RETRY, _FAILED, _UNKNOWN, _SETTLED, _MORE
cdef Py_ssize_t _PIECE, _RUN_MAX, _SCANNED, _LOOKED_AT

cdef class Channel:
    cdef object __weakref__
    cdef public object connection, tx, stage, searching, content, vhost, reply_tag, nacked
    cdef public unsigned int number, settling
    cdef public Output output
    cdef public Crowd crowd
    cdef public bint closing, flow, confirm, unsynced, touched, reading, capped
    cdef public dict consumers, getters, _allowed
    cdef public str last_queue
    cdef public Py_ssize_t prefetch, prefetch_all, unacked, got, unacked_max, in_flight, dirtied, plain, _head, appending
    cdef public unsigned long long next_to_settle, settle_until, next_tag, sequence, confirmed, noted
    cdef readonly Timed timed
    cdef public unsigned long long published, counted, answered, returned, dropped
    cdef public unsigned long long delivered, delivered_auto, redelivered, acks, gets, gets_auto, gets_empty
    cdef readonly Buf _tags
    cdef Buf _key, _props
    cdef public list slots, uncommitted, used, _free
    cdef public Route route
    cdef Epoch _epoch
    cdef Traffic _traffic
    cdef list _touched
    cdef public long long _generation

    @cython.locals(route=Route, inside=int, refused=list, k=Py_ssize_t, q=Queue)
    cdef int publish(self, const unsigned char* p, Py_ssize_t key, Py_ssize_t key_len, int options, const unsigned char* props_p, Py_ssize_t props, Py_ssize_t props_len, const unsigned char* body_p, Py_ssize_t body, Py_ssize_t body_len) except? -1
    cpdef Route find_route(self, bytes key)
    @cython.locals(count="long long", route=Route)
    cpdef count_published(self)
    cpdef touch(self)
    @cython.locals(last="unsigned long long", count="unsigned long long")
    cpdef confirm_to(self, unsigned long long sequence)
    cdef several(self, Py_ssize_t count, Py_ssize_t body_len)
    @cython.locals(b=Buf, o=Py_ssize_t, tag="unsigned long long")
    cdef unsigned long long remember(self, unsigned long long offset, Py_ssize_t body_len, unsigned int slot) except? 0
    @cython.locals(b=Buf)
    cpdef forget_since(self, unsigned long long tag)
    @cython.locals(b=Buf, kept=Py_ssize_t, o=Py_ssize_t)
    cpdef make_room(self)
    @cython.locals(b=Buf, o=Py_ssize_t, slot="unsigned int")
    cpdef release(self, unsigned long long first, unsigned long long last, bint done)
    @cython.locals(b=Buf, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, first="unsigned long long")
    cdef Py_ssize_t seek(self, unsigned long long tag) except? -2
    @cython.locals(o=Py_ssize_t)
    cdef Py_ssize_t find(self, unsigned long long tag) except? -2
    cpdef unsigned long long first_tag(self)
    @cython.locals(b=Buf, o=Py_ssize_t, slot="unsigned int")
    cpdef int settle_tags(self, unsigned long long tag, bint multiple, int kind) except? -1
    @cython.locals(b=Buf, begin=Py_ssize_t, left=Py_ssize_t, tag="unsigned long long", slot="unsigned int", run_slot="unsigned int", run_offset="unsigned long long", run=Py_ssize_t, run_bytes=Py_ssize_t, offset="unsigned long long", result=int, cost=Py_ssize_t)
    cdef int settle_piece(self, Py_ssize_t o, unsigned long long until, int kind) except? -1
    cpdef int settle_from(self, unsigned long long tag, unsigned long long until, int kind) except? -1
    @cython.locals(c=Consumer, q=Queue, cost=Py_ssize_t)
    cdef Py_ssize_t finish(self, unsigned int slot, unsigned long long offset, Py_ssize_t n, Py_ssize_t body_bytes, int kind) except? -1
    cpdef settled(self, Consumer c, unsigned int slot, Py_ssize_t n)
    @cython.locals(left=Py_ssize_t)
    cpdef Py_ssize_t room(self) except? -1
    @cython.locals(b=Buf, o=Py_ssize_t, most=Py_ssize_t, slot="unsigned int", passed="unsigned int", c=Consumer, q=Queue, limit="long long")
    cpdef tuple late(self, unsigned long long first, unsigned long long end, long long shorter_ms, long long longest_ms)
    cpdef free_slot(self, unsigned int slot)
