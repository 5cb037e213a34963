cimport cython
from kvitto.base cimport ticks
from kvitto.server cimport ready

cdef unsigned int _IN, _OUT
