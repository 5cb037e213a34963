cimport cython
from kvitto.base cimport rawio

cdef class RealFile:
    cdef dict __dict__
    cdef object __weakref__
    cdef public str path
    cdef public int _fd
    cdef object _open_files
