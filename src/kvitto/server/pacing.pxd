cdef class Pacing:
    cdef public Py_ssize_t budget
    cdef public double _rate, _waited_at
    cdef public set fast
    cdef public list throttled

    cpdef measured(self, Py_ssize_t size, double seconds)
    cpdef waited(self, double now)
    cpdef bint over_budget(self, Py_ssize_t unsynced, double now) except -1
    cpdef bint look(self, Py_ssize_t unsynced, double now, bint lagging=*) except -1
