cimport cython
from kvitto.format cimport slot_sizes
from kvitto.wire cimport bits

cdef Py_ssize_t _SLOT, _HALF

@cython.locals(half=bytearray)
cpdef bytearray _sizes(object seed, unsigned long long size, unsigned long long acks_size, unsigned long long end)

cdef class Inventory:
    cdef object __weakref__
    cdef public object _disk
    cdef object _found
    cdef Py_ssize_t _slots
    cdef list _twice
    cdef public list _free
    cdef dict _seeds, _unclaimed
    cdef public dict owed
    cdef public bint is_open
    cdef public object file

    @cython.locals(at=Py_ssize_t)
    cpdef bint grown(self, Py_ssize_t slot, unsigned long long size, unsigned long long acks_size, unsigned long long end) except -1
    @cython.locals(at=Py_ssize_t, name=bytes)
    cpdef bint put(self, Py_ssize_t slot, tuple key, tuple sizes) except? 0
    cdef _write(self, Py_ssize_t at, object data)
