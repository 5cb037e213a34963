cimport cython
from kvitto.client.columns cimport Batch, Column, Latencies, Window
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf

cdef unsigned int _COUNT, _EVENTS, _WAITING, _HEADER, _BODY, _MORE, _BASIC, _DELIVER, _ACK, _NACK, _RETURN, _GET_OK
cdef unsigned long long _BODY_MAX

cdef class Template:
    cdef public Buf buf
    cdef public Py_ssize_t size
    cdef public Py_ssize_t stamp_at
    @cython.locals(size=Py_ssize_t, p="unsigned char*", source="unsigned char*", at=Py_ssize_t, stamp=Py_ssize_t, k=Py_ssize_t)
    cpdef fill(self, Buf out, Py_ssize_t count, unsigned long long now)

@cython.locals(e=Py_ssize_t, r=Py_ssize_t, n=Py_ssize_t, size=Py_ssize_t, step=Py_ssize_t)
cpdef put_publish(Buf out, unsigned int channel, bytes exchange, bytes routing_key, unsigned int flags, bytes properties, bytes body, Py_ssize_t frame_max)
@cython.locals(step=Py_ssize_t, e_step=Py_ssize_t, r_step=Py_ssize_t, p_step=Py_ssize_t, b_step=Py_ssize_t, e_ends="const unsigned char*", r_ends="const unsigned char*", p_ends="const unsigned char*", b_ends="const unsigned char*", k=Py_ssize_t, i=Py_ssize_t, e_at=Py_ssize_t, e=Py_ssize_t, r_at=Py_ssize_t, r=Py_ssize_t, p_at=Py_ssize_t, n=Py_ssize_t, b_at=Py_ssize_t, size=Py_ssize_t)
cpdef put_rows(Buf out, unsigned int channel, Column exchanges, Column routing_keys, Column properties, Column bodies, Py_ssize_t start, Py_ssize_t end, unsigned int flags, Py_ssize_t frame_max)
cdef Py_ssize_t column_step(Column column, Py_ssize_t rows) except? -1
@cython.locals(k=Py_ssize_t)
cdef Py_ssize_t put_frames(unsigned char* p, Py_ssize_t i, unsigned int channel, const unsigned char* exchange, Py_ssize_t e_at, Py_ssize_t e, const unsigned char* routing_key, Py_ssize_t r_at, Py_ssize_t r, unsigned int flags, const unsigned char* properties, Py_ssize_t p_at, Py_ssize_t n, const unsigned char* body, Py_ssize_t b_at, Py_ssize_t size, Py_ssize_t step) noexcept
cdef int start_frame(unsigned char* p, Py_ssize_t i, unsigned int kind, unsigned int channel, unsigned int size) noexcept
@cython.locals(p="unsigned char*", i=Py_ssize_t)
cpdef put_settle(Buf out, unsigned int channel, unsigned int method, unsigned long long tag, unsigned int flags)

@cython.locals(p="unsigned char*", i=Py_ssize_t, tag="unsigned long long")
cpdef put_acks(Buf out, unsigned int channel, unsigned long long first, unsigned long long last, unsigned long long step)

cdef class Sink:
    cdef public unsigned int channel
    cdef public int mode
    cdef public Batch batch
    cdef public Window window
    cdef public bint record_confirms
    cdef public Latencies latencies
    cdef public unsigned long long count
    cdef public unsigned long long body_bytes
    cdef public unsigned long long last_tag
    cdef int state
    cdef unsigned int method
    cdef unsigned long long rest
    cdef Buf head
    cdef Buf props
    cdef Buf partial
    @cython.locals(k=Py_ssize_t, head=Buf)
    cdef int begin(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t n, unsigned int method) except? -1
    @cython.locals(props=Buf)
    cdef int header(self, const unsigned char* p, Py_ssize_t i, Py_ssize_t n) except? -1

cdef class Scanner:
    cdef public Buf inp
    cdef public list sinks
    cdef public list events
    cdef public unsigned long long frames
    cdef public Py_ssize_t frame_max
    @cython.locals(inp=Buf, p="unsigned char*", i=Py_ssize_t, end=Py_ssize_t, last=Py_ssize_t, sink=Sink, error=int, kind="unsigned int", channel=Py_ssize_t, size=Py_ssize_t)
    cpdef scan(self, unsigned long long now)
    @cython.locals(method="unsigned int")
    cdef int take_method(self, Sink sink, const unsigned char* p, Py_ssize_t i, Py_ssize_t n) except? -1
    @cython.locals(partial=Buf)
    cdef int body(self, Sink sink, const unsigned char* p, Py_ssize_t i, Py_ssize_t n, unsigned long long now) except? -1
    cdef int finish(self, Sink sink, const unsigned char* p, Py_ssize_t i, Py_ssize_t n) except? -1
    @cython.locals(head=bytes, h="const unsigned char*", size=Py_ssize_t, t=Py_ssize_t, e=Py_ssize_t, number="unsigned long long", again=bint)
    cdef int deliver(self, Sink sink, Buf source, Py_ssize_t i, Py_ssize_t n) except? -1
    cdef int confirm(self, Sink sink, unsigned long long tag, bint multiple, bint ok) except? -1
    cdef content(self, Sink sink, Buf source, Py_ssize_t i, Py_ssize_t n)
    cdef other(self, Py_ssize_t channel, int kind, Py_ssize_t i, Py_ssize_t n)
