cimport cython
from kvitto.broker.state cimport TurnState
from kvitto.format cimport entry
from kvitto.store.batch cimport Batch
from kvitto.broker.queues.consumer cimport Consumer
from kvitto.broker.queues.tail cimport Tail

cdef Py_ssize_t _TAIL_BYTES
cdef int _HAS_PRIORITY

cdef class Queue:
    cdef object __weakref__
    cdef public TurnState broker
    cdef public object vhost, log, settings, policy, operator_policy, owner, group, fault, hold
    cdef public str name
    cdef public dict arguments
    cdef public list consumers, group_holders
    cdef public bint durable, exclusive, auto_delete, archived, writes_all, deleted, single, had_consumer
    cdef public bint dirty, shown, late, held_back, has_files, waits_for_commit, yields, checking, rejects, limited, may_expire, prioritises
    cdef public Py_ssize_t returning, return_cost, ready_bytes, unacked, unacked_bytes
    cdef public unsigned long long serials
    cdef public long long used_ms, ttl_ms, consumer_timeout_ms
    cdef public unsigned long long published, delivered, redelivered, acked, delivered_auto, gets, gets_auto, gets_empty
    cdef readonly Tail tail
    cdef public Consumer serving

    @cython.locals(t=Batch)
    cdef int append(self, const unsigned char* key_p, Py_ssize_t key, Py_ssize_t key_len, const unsigned char* props_p, Py_ssize_t props, Py_ssize_t props_len, const unsigned char* body_p, Py_ssize_t body, Py_ssize_t body_len, long long ttl_ms, unsigned int flags) except? -1
    @cython.locals(whole=bytes)
    cpdef int append_bytes(self, bytes key, bytes props, object body, long long ttl_ms, unsigned int flags) except? -1
    @cython.locals(k=Py_ssize_t, e=Py_ssize_t, message=entry.Message, m=Py_ssize_t, props_len=Py_ssize_t, key_len=Py_ssize_t, body=Py_ssize_t, body_len=Py_ssize_t, flags="unsigned int", ttl_ms="long long")
    cpdef append_run(self, Batch b)
    @cython.locals(k=Py_ssize_t, e=Py_ssize_t, message=entry.Message, m=Py_ssize_t, ttl_ms="long long")
    cpdef adopt_run(self, Batch b)
    cpdef Batch open_tail(self)
    @cython.locals(now_ms="long long")
    cpdef long long clock_of(self, Batch b) except? -1
    cpdef bint is_full(self, Py_ssize_t body_len) except -1
    cpdef enforce_limits(self)
    cpdef mark_dirty(self)
    cpdef show(self)
    cpdef write_early(self)
    cdef bint lets_others_first(self) except -1
    cpdef bint _must_wait(self, unsigned long long delivered) except -1
    @cython.locals(tail=Batch)
    cpdef bint _is_slow(self) except -1
    cpdef _written(self, Batch batch)
    cpdef flush(self)
    cpdef pump(self)
    cpdef deliver_ready(self)
    cpdef resume(self, Consumer c)
    cpdef bint get(self, Consumer c) except -1
    cpdef ack(self, unsigned long long offset, unsigned long long n, Consumer c=*)
