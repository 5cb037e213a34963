cimport cython
from kvitto.base cimport ticks
from kvitto.server cimport ready
from kvitto.server.served cimport Served

cdef unsigned int _IN, _OUT

cdef serve(Served peer, int events)
