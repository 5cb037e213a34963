cimport cython
from kvitto.broker.queues.consumer cimport Consumer

cdef class Line:
    cdef public int priority
    cdef public Consumer last

cdef class Rota:
    cdef public list lines
    cdef public Py_ssize_t burst
    cdef public Consumer asking
    @cython.locals(line=Line, last=Consumer)
    cpdef put(self, Consumer c)
    cpdef Line _line(self, int priority)
    @cython.locals(line=Line)
    cpdef drop(self, Consumer c)
    @cython.locals(line=Line, c=Consumer, left=Py_ssize_t)
    cdef Consumer next(self)
