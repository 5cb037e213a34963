cimport cython
from kvitto.base.clock cimport Clock
from kvitto.store.batch cimport Batch
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef Py_ssize_t _CELL, _SAMPLES
cdef long long _TIMED_MAX_US

cdef class Histogram:
    cdef public unsigned long long sum
    cdef Buf _cells

    @cython.locals(p="unsigned char*", at=Py_ssize_t)
    cpdef add(self, long long value, unsigned long long weight)

cdef class Latencies:
    cdef public Histogram confirm, deliver, ack, sync, turn, peers, callbacks, sizes
    cdef public long long now_us
    cdef unsigned long long _random

    @cython.locals(left=Py_ssize_t, parts=Py_ssize_t, at=Py_ssize_t, n=Py_ssize_t, total="unsigned long long")
    cpdef note_sizes(self, Batch batch)
    cpdef held_by_peers(self, double seconds)
    cpdef held_by_callbacks(self, double seconds)

cdef class Timed:
    cdef public unsigned long long tag
    cdef long long _since_us
    cdef Latencies _latencies
    cdef Clock _clock

    @cython.locals(now_us="long long")
    cpdef begin(self, unsigned long long tag)
    cpdef end(self, bint acked)
