cimport cython
from kvitto.base cimport ticks
from kvitto.server cimport datasync
from kvitto.store.commit cimport Commit

cdef class Syncer:
    cdef object __weakref__
    cdef object _loop, _done, _on_freed, _apart, _remover, _waves, _waiting
    cdef public double usual
    cdef double _begin, _end, _seconds
    cdef public int _taken, _requests, _outcomes, _told, _gone, _removed, _counted, _freed
    cdef public list _threads
    cdef public Commit _job
    cdef public Py_ssize_t _left, freeing

    cpdef bint is_short(self, Commit job) except -1
    cpdef submit(self, Commit job)
    @cython.locals(begin=double)
    cpdef run(self, Commit job)
    cpdef measured(self, Commit job, double seconds)
    cdef bint _next(self) except -1
    cdef _write(self)
    cdef _end_job(self)
