cimport cython
from kvitto.base.clock cimport Clock
from kvitto.store.batch cimport Batch
from kvitto.store.commit cimport GroupCommit
from kvitto.store cimport settlements
from kvitto.store.room cimport Room
from kvitto.store.segment cimport Segment
from kvitto.store.settlements cimport Settlements
from kvitto.wire.buf cimport Buf

cdef Py_ssize_t _SEGMENT_BYTES

cdef class Log:
    cdef object __weakref__
    cdef dict __dict__
    cdef public object store, reader, archive, _slices
    cdef public str queue_id, directory
    cdef public list segments
    cdef public unsigned long long next, delivered_mark, journal, _announced
    cdef public Py_ssize_t segment_bytes
    cdef public bint durable, damaged, leaving, out_of_service, keyed
    cdef public Segment mark_segment, _keyed_segment
    cdef Buf _scratch
    cdef Room _room
    cdef GroupCommit _commits
    cdef Clock _clock

    @cython.locals(current=Segment, size=Py_ssize_t)
    cpdef write(self, Batch batch)
    cpdef _keep(self)
    @cython.locals(current=Segment)
    cdef Segment _writable(self, Batch batch)
    @cython.locals(segments=list, segment=Segment, settled=Py_ssize_t, i=Py_ssize_t)
    cpdef settle(self, Settlements pending, unsigned long long mark)
    cdef list _touched(self, unsigned long long lowest, unsigned long long highest)
    cpdef append_block(self, Segment segment, Buf entries, unsigned long long mark)
    @cython.locals(current=Segment, segment=Segment)
    cpdef drop_settled(self)
    cdef bint _is_due(self, Segment current) except -1
    @cython.locals(segment=Segment)
    cpdef wrote_keys(self, Py_ssize_t count)
    @cython.locals(segment=Segment)
    cpdef bint let_go(self, unsigned long long offset) except -1
    cpdef announced(self, unsigned long long end)
