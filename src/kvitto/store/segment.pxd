cimport cython
from kvitto.store.batch cimport Batch

cdef class Segment:
    cdef object __weakref__
    cdef public unsigned long long base, end, synced_end, journal, salt, _written_end
    cdef public long long settled, created_ms
    cdef public Py_ssize_t size, reserved, durable, count, body_bytes, journal_end, slot, acks_size, acks_durable, leases, ahead, keys
    cdef public bint sealed, full, evidence, linked, archived, gone, _sparse_known
    cdef public object file, acks, gaps, sparse
    cdef public dict checked

    cpdef write(self, Batch batch, bint reserve=*)
    cpdef written(self, Batch batch, Py_ssize_t size)
    cpdef note(self, unsigned long long first, Py_ssize_t count, Py_ssize_t body_bytes, unsigned long long journal, Py_ssize_t position)
