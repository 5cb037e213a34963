from kvitto.store.batch cimport Batch

cdef class Tail:
    cdef public unsigned long long next, first
    cdef public Py_ssize_t settled
    cdef public Batch batch
    cdef public object closed
    cpdef open(self, Batch batch)
    cpdef end(self)
