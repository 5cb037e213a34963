cimport cython
from kvitto.base cimport ticks
from kvitto.server cimport ready
from kvitto.server.served cimport Served

cdef unsigned int _IN, _OUT
cdef int _READ, _WRITE

@cython.locals(served=bint, i=int, bits="unsigned int", events=int)
cdef bint serve(dict peers, bytearray box, int count, dict keys, list found) except -1
@cython.locals(peer=Served)
cdef bint handle(dict peers, int fd, int events, dict keys, list found) except -1
