cimport cython
from kvitto.format cimport slot_sizes
from kvitto.wire cimport bits

@cython.locals(half=bytearray, size="unsigned long long", acks_size="unsigned long long", end="unsigned long long")
cdef bytearray _sizes(object seed, tuple sizes)

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

    @cython.locals(at=Py_ssize_t, name=bytes)
    cpdef bint put(self, Py_ssize_t slot, tuple key, tuple sizes) except? 0
    cdef _write(self, Py_ssize_t at, object data)
