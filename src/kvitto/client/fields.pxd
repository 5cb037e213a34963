cimport cython
from kvitto.wire cimport bits
from kvitto.wire.buf cimport Buf
from kvitto.wire.field_writer cimport put_short, put_table
from kvitto.wire.fields cimport Reader

cdef int _HEADERS, _DELIVERY_MODE, _PRIORITY, _TIMESTAMP, _FIELDS

cpdef dict read_fields(bytes data, tuple names)
@cython.locals(flags="unsigned int", k=int, found=dict)
cdef dict read_all(Reader reader, tuple names)

@cython.locals(out=Buf, flags="unsigned int", k=int)
cpdef bytes write_fields(properties, tuple names)
