from kvitto.store.commit cimport GroupCommit

cdef class LaterWrites:
    cdef dict __dict__
    cdef public Py_ssize_t waiting, bytes
    cdef public bint limited
    cdef GroupCommit _commits
