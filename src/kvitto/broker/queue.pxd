cimport cython
from kvitto.format cimport entry
from kvitto.store.batch cimport Batch
from kvitto.store.settlements cimport Settlements
from kvitto.broker.consumer cimport Consumer
from kvitto.broker.rota cimport Rota

cdef Py_ssize_t _TAIL_BYTES, _AGAIN_COST
cdef int _ACKED, _HAS_PRIORITY

cdef class Queue:
    cdef object __weakref__
    cdef public object broker, vhost, log, settings, policy, operator_policy, owner, group, fault, hold, requeued, parked, delays, backlog, _ahead, _behind, _outline
    cdef public object redeliveries
    cdef public str name
    cdef public dict arguments
    cdef public list consumers, group_holders
    cdef public bint durable, exclusive, auto_delete, deleted, single, had_consumer, dirty, shown, late
    cdef public bint rejects, limited, may_expire, requeued_ready, ranked, prioritises, archived, checking, patient, held_back
    cdef public Py_ssize_t burst, returning, return_cost, ready, ready_bytes, estimates, unacked, moving, coming, coming_bytes, tail_settled
    cdef public unsigned long long serials, cursor, next, doubt, tail_first
    cdef public long long used_ms, ttl_ms, max_length, max_bytes, delivery_limit, consumer_timeout_ms, expiry_timer, leaving, leaving_turn
    cdef public unsigned long long published, delivered, redelivered, acked
    cdef public Batch tail, front
    cdef public Consumer serving
    cdef public Settlements settlements
    cdef public Rota rota

    @cython.locals(t=Batch)
    cdef int append(self, const unsigned char* key_p, Py_ssize_t key, Py_ssize_t key_len, const unsigned char* props_p, Py_ssize_t props, Py_ssize_t props_len, const unsigned char* body_p, Py_ssize_t body, Py_ssize_t body_len, long long ttl_ms, unsigned int flags) except? -1
    @cython.locals(whole=bytes)
    cpdef int append_bytes(self, bytes key, bytes props, object body, long long ttl_ms, unsigned int flags) except? -1
    @cython.locals(k=Py_ssize_t, e=Py_ssize_t, message=entry.Message, m=Py_ssize_t, props_len=Py_ssize_t, key_len=Py_ssize_t, body=Py_ssize_t, body_len=Py_ssize_t, flags="unsigned int", ttl_ms="long long")
    cpdef append_run(self, Batch b)
    @cython.locals(k=Py_ssize_t, e=Py_ssize_t, message=entry.Message, m=Py_ssize_t, ttl_ms="long long")
    cpdef adopt_run(self, Batch b)
    cpdef Batch open_tail(self)
    cpdef mark_dirty(self)
    cpdef show(self)
    cpdef turn(self)
    cpdef bint is_full(self, Py_ssize_t body_len) except -1
    cpdef enforce_limits(self)
    @cython.locals(c=Consumer)
    cpdef pump(self)
    @cython.locals(c=Consumer, w=Batch, i=Py_ssize_t, n=Py_ssize_t, k=Py_ssize_t, left=Py_ssize_t)
    cpdef deliver_ready(self)
    cdef bint given(self, Consumer c, Py_ssize_t k) noexcept
    @cython.locals(offset="unsigned long long", size=Py_ssize_t, unacked=bint)
    cdef Py_ssize_t took(self, Consumer c, Batch w, Py_ssize_t i, Py_ssize_t k) except? -1
    @cython.locals(rota=Rota, c=Consumer)
    cdef Consumer pick(self)
    cpdef resume(self, Consumer c)
    @cython.locals(f=Batch, t=Batch)
    cdef Batch window(self)
    @cython.locals(end="unsigned long long")
    cpdef settle(self, unsigned long long offset, unsigned long long n, int outcome, unsigned int deliveries=*)
    cpdef ack(self, unsigned long long offset, unsigned long long n, Consumer c=*)
    @cython.locals(w=Batch, i=Py_ssize_t)
    cpdef bint get(self, Consumer c) except -1
    @cython.locals(now_ms="long long")
    cdef long long clock_of(self, Batch b) except? -1
