cimport cython
from kvitto.format cimport batch_head, entry
from kvitto.wire.buf cimport Buf

cdef Py_ssize_t _HEAD, _PREFIX

cdef class PropertiesScan:
    cdef readonly Buf chunk
    cdef readonly unsigned long long offset
    cdef readonly long long time_ms
    cdef readonly Py_ssize_t props, props_len
    cdef object _segment, _file
    cdef readonly Py_ssize_t damaged_at
    cdef public Py_ssize_t _end, _start, _at, _following, _count, _meta_len, _k
    cdef unsigned long long _first

    @cython.locals(message=entry.Message, e=Py_ssize_t, key_len=Py_ssize_t)
    cpdef bint next(self) except -1
    @cython.locals(head=batch_head.Head, at=Py_ssize_t, need=Py_ssize_t, whole=bint, told="unsigned long long")
    cdef bint take_batch(self) except -1
