cimport cython
from kvitto.format cimport batch_head, entry, prefix
from kvitto.wire cimport bits, check
from kvitto.wire.buf cimport Buf

cdef Py_ssize_t _HEADER
cdef unsigned int _HAS_TYPE, _HAS_ENCODING, _HAS_HEADERS, _HAS_MODE, _HAS_PRIORITY

cdef class Batch:
    cdef public Buf index
    cdef public Buf meta
    cdef public Buf body
    cdef readonly Py_ssize_t index_at, meta_at, body_at
    cdef public unsigned long long first
    cdef public Py_ssize_t count
    cdef public long long time_ms, opened_us
    cdef public unsigned long long journal
    cdef public bint shared
    cdef public object stored
    @cython.locals(index=Buf, meta=Buf, e=Py_ssize_t, m=Py_ssize_t, b=Py_ssize_t)
    cdef int add(self, const unsigned char* key_p, Py_ssize_t key, Py_ssize_t key_len, const unsigned char* props_p, Py_ssize_t props, Py_ssize_t props_len, const unsigned char* body_p, Py_ssize_t body, Py_ssize_t body_len, long long ttl_ms, unsigned int flags) except? -1
    @cython.locals(p="const unsigned char*", e=Py_ssize_t, first=Py_ssize_t, key_len=Py_ssize_t, k=Py_ssize_t)
    cpdef Py_ssize_t same_key(self, Py_ssize_t i, Py_ssize_t n)
    @cython.locals(k=Py_ssize_t, m=Py_ssize_t, message=entry.Message)
    cpdef Py_ssize_t alike(self, Py_ssize_t i, Py_ssize_t n)
    @cython.locals(k=Py_ssize_t, total=Py_ssize_t, message=entry.Message)
    cpdef Py_ssize_t run_bytes(self, Py_ssize_t i, Py_ssize_t n)
    @cython.locals(meta=Buf, body=Buf, k=Py_ssize_t, message=entry.Message, m=Py_ssize_t, b=Py_ssize_t, props_len=Py_ssize_t, key_len=Py_ssize_t)
    cpdef copy_to(self, Batch other, Py_ssize_t i, Py_ssize_t n)
    @cython.locals(offset=Py_ssize_t)
    cpdef fetch(self)
    @cython.locals(first=entry.Message, last=entry.Message, meta_end=Py_ssize_t)
    cpdef open_part(self, Buf chunk, object header, Py_ssize_t i, Py_ssize_t n, object stored=*)
    cpdef start(self, unsigned long long first, long long time_ms, long long opened_us=*)
    cpdef Py_ssize_t size(self)
    @cython.locals(head=bytearray, meta_len=Py_ssize_t, body_len=Py_ssize_t)
    cpdef bytearray head(self, unsigned long long durable)
    @cython.locals(head=bytearray)
    cpdef list seal(self, unsigned long long durable, unsigned long long salt)
    @cython.locals(whole=bytearray, at=Py_ssize_t)
    cdef bytearray _seal_whole(self, unsigned long long durable, unsigned long long salt)
    cpdef Py_ssize_t body_len(self, Py_ssize_t i)
    cpdef long long ttl_of(self, Py_ssize_t i)
    @cython.locals(ttl_ms="long long")
    cpdef long long expires_at(self, Py_ssize_t i)
    @cython.locals(k=Py_ssize_t, ttl_ms="long long")
    cpdef Py_ssize_t live_run(self, Py_ssize_t i, Py_ssize_t n, long long now_ms)
    @cython.locals(message=entry.Message, m=Py_ssize_t, end=Py_ssize_t, flags=Py_ssize_t)
    cpdef Py_ssize_t priority_of(self, Py_ssize_t i) except? -1
    @cython.locals(k=Py_ssize_t, total=Py_ssize_t)
    cpdef Py_ssize_t body_bytes(self, Py_ssize_t i, Py_ssize_t n)
    @cython.locals(e=Py_ssize_t, message=entry.Message, m=Py_ssize_t, b=Py_ssize_t, key_len=Py_ssize_t)
    cpdef tuple viewed(self, Py_ssize_t i)
    @cython.locals(message=entry.Message, b=Py_ssize_t)
    cpdef tuple message(self, Py_ssize_t i)
    @cython.locals(message=entry.Message, m=Py_ssize_t, meta=bytes)
    cpdef tuple key_and_props(self, Py_ssize_t i)
    cpdef unsigned int flags_of(self, Py_ssize_t i)

@cython.locals(at=Py_ssize_t, head=batch_head.Head)
cpdef Py_ssize_t whole_before(Buf chunk, Py_ssize_t n, unsigned long long offset) except? -1
