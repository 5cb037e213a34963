cimport cython
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf
from kvitto.protocol.crowd cimport Crowd

cdef class Output:
    cdef public object hub, owner
    cdef public Buf buf
    cdef public Crowd crowd
    cdef public bint paused, full, dirty, streaming
    cdef public object parts
    cdef public Py_ssize_t frame_max, properties_max
    cpdef mark_dirty(self)
    @cython.locals(n=Py_ssize_t, buf=Buf, q="unsigned char*", o=Py_ssize_t)
    cpdef put_method(self, unsigned int channel, bytes payload)
    @cython.locals(buf=Buf, q="unsigned char*", o=Py_ssize_t)
    cpdef put_ack(self, unsigned int channel, unsigned long long tag, bint multiple)
    @cython.locals(size=Py_ssize_t, buf=Buf, q="unsigned char*", o=Py_ssize_t)
    cdef int put_delivery(self, unsigned int channel, const unsigned char* tag_p, Py_ssize_t tag_len, unsigned long long delivery_tag, int redelivered, const unsigned char* key_p, Py_ssize_t key, Py_ssize_t key_len) except? -1
    @cython.locals(buf=Buf, most=Py_ssize_t, need=Py_ssize_t, q="unsigned char*", o=Py_ssize_t, at=Py_ssize_t, part=Py_ssize_t)
    cdef int put_content(self, unsigned int channel, const unsigned char* props_p, Py_ssize_t props, Py_ssize_t props_len, const unsigned char* body_p, Py_ssize_t body, Py_ssize_t body_len) except? -1
    @cython.locals(whole=bytes)
    cpdef put_content_bytes(self, unsigned int channel, bytes props, object body)
