cimport cython
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef Py_ssize_t _LOW, _HIGH, _OFFSET, _UNTIL, _BEFORE, _AFTER, _ENTRY, _PAGE, _SHIFT, _LAST, _SHARD

cdef class Shard:
    cdef Buf slots
    cdef Py_ssize_t mask, used

cdef class KeyTable:
    cdef readonly Py_ssize_t capacity, count, oldest, newest
    cdef public Py_ssize_t uncounted
    cdef list _pages, _shards
    cdef Py_ssize_t _used, _free, _round

    @cython.locals(shard=Shard, slots=Buf, page=Buf, at=Py_ssize_t, i=Py_ssize_t, e=Py_ssize_t)
    cpdef Py_ssize_t find(self, unsigned long long low, unsigned long long high) except? -1
    @cython.locals(i=Py_ssize_t)
    cpdef Py_ssize_t add(self, unsigned long long low, unsigned long long high, unsigned long long offset, unsigned long long until_ms) except? -1
    @cython.locals(i=Py_ssize_t)
    cpdef Py_ssize_t add_oldest(self, unsigned long long low, unsigned long long high, unsigned long long offset, unsigned long long until_ms) except? -1
    @cython.locals(page=Buf, i=Py_ssize_t, e=Py_ssize_t)
    cdef Py_ssize_t put(self, unsigned long long low, unsigned long long high, unsigned long long offset, unsigned long long until_ms) except? -1
    cdef take(self, Shard shard, Py_ssize_t i, unsigned long long high)
    @cython.locals(n=Py_ssize_t, old=Shard, low=Shard, high=Shard, at=Py_ssize_t, i=Py_ssize_t, page=Buf, e=Py_ssize_t, upper="unsigned long long")
    cdef split(self)
    cdef link(self, Py_ssize_t i, Py_ssize_t before, Py_ssize_t after)
    @cython.locals(slots=Buf, at=Py_ssize_t)
    cdef enter(self, Shard shard, Py_ssize_t i, unsigned long long high)
    @cython.locals(old=Buf, n=Py_ssize_t, at=Py_ssize_t, i=Py_ssize_t)
    cdef widen(self, Shard shard)
    @cython.locals(page=Buf, shard=Shard, e=Py_ssize_t, before=Py_ssize_t, after=Py_ssize_t)
    cpdef remove(self, Py_ssize_t i)
    @cython.locals(slots=Buf, mask=Py_ssize_t, hole=Py_ssize_t, at=Py_ssize_t, moved=Py_ssize_t, home=Py_ssize_t)
    cdef vacate(self, Shard shard, Py_ssize_t i, unsigned long long high)
    cpdef unsigned long long offset_of(self, Py_ssize_t i) except? 0
    cpdef long long until_of(self, Py_ssize_t i) except? -1
    @cython.locals(n=Py_ssize_t, i=Py_ssize_t)
    cpdef Py_ssize_t count_below(self, unsigned long long end) except? -1
    @cython.locals(at="unsigned long long")
    cdef Shard shard_of(self, unsigned long long low)
    cdef Buf page_of(self, Py_ssize_t i)
    cdef set_before(self, Py_ssize_t i, Py_ssize_t before)
    cdef set_after(self, Py_ssize_t i, Py_ssize_t after)
