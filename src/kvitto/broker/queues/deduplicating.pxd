cimport cython
from kvitto.broker.queues.key_table cimport KeyTable
from kvitto.broker.queues.work_queue cimport WorkQueue
from kvitto.store.batch cimport Batch
from kvitto.store.properties_scan cimport PropertiesScan
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf
from kvitto.wire.message_key cimport MessageKey

cdef long long _FOREVER
cdef unsigned int _DEAD
cdef Py_ssize_t _NOTE

cdef class DeduplicatingQueue(WorkQueue):
    cdef public MessageKey key
    cdef public KeyTable table
    cdef public long long cache_ttl_ms
    cdef public unsigned long long duplicates
    cdef unsigned long long _low, _high, _counted_end
    cdef Py_ssize_t _known
    cdef object _seed, _owed, _record, _relied_end
    cdef bint _emptied, _waking, _awaits_sync

    @cython.locals(found=bytes, noted=Py_ssize_t, taken=int)
    cdef int append(self, const unsigned char* key_p, Py_ssize_t key, Py_ssize_t key_len, const unsigned char* props_p, Py_ssize_t props, Py_ssize_t props_len, const unsigned char* body_p, Py_ssize_t body, Py_ssize_t body_len, long long ttl_ms, unsigned int flags) except? -1
    cpdef Batch open_tail(self)
    cpdef bint _is_slow(self) except -1
    @cython.locals(digest=bytes)
    cdef bint knows(self, bytes found) except -1
    @cython.locals(table=KeyTable)
    cdef Py_ssize_t note(self) except? -1
    @cython.locals(at="long long")
    cdef long long until(self, long long ttl_ms, long long age_ms) except? -1
    @cython.locals(offset="unsigned long long")
    cdef forget(self, Py_ssize_t i)
    cpdef _written(self, Batch batch)
    cpdef flush(self)
    @cython.locals(table=KeyTable, now_ms="long long", left=Py_ssize_t, wait="long long")
    cdef _forget_old(self)
    @cython.locals(found=bytes, digest=bytes, at=Py_ssize_t, age_ms="long long")
    cdef scan(self, PropertiesScan scan, Buf notes)
    @cython.locals(table=KeyTable, at=Py_ssize_t, low="unsigned long long", high="unsigned long long")
    cdef _take_keys(self, Buf notes)
