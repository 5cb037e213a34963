cdef class Counted:
    cdef public Py_ssize_t count
