cimport cython
from kvitto.wire cimport bits

cdef Py_ssize_t _DIRECT_LEN
cdef int _DEPTH

@cython.locals(flags="unsigned int", found=int, end=Py_ssize_t, i=Py_ssize_t, bit="unsigned int", size=Py_ssize_t, k=int)
cpdef int check_properties(const unsigned char* p, Py_ssize_t at, Py_ssize_t n) noexcept
cdef bint is_direct(const unsigned char* p, Py_ssize_t i, Py_ssize_t end) noexcept
@cython.locals(found=int, size=Py_ssize_t)
cdef int check_table(const unsigned char* p, Py_ssize_t i, Py_ssize_t end, int depth) noexcept
cdef bint is_copies(const unsigned char* p, Py_ssize_t i, Py_ssize_t size) noexcept
@cython.locals(kind="unsigned int", size=Py_ssize_t)
cdef Py_ssize_t check_value(const unsigned char* p, Py_ssize_t i, Py_ssize_t end, int depth) noexcept
cdef int check_array(const unsigned char* p, Py_ssize_t i, Py_ssize_t end, int depth) noexcept
