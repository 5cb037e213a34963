from kvitto.broker.queues.queue cimport Queue

cdef class Traffic:
    cdef public Traffic whole
    cdef public long long published, routed, confirmed, returned, dropped
    cpdef add(self, long long published, long long routed)
    cpdef confirm(self, long long count)
    cpdef miss(self, bint returned)

cdef class Route:
    cdef public str exchange, routing_key
    cdef public list queues
    cdef public Queue first
    cdef public object out_of_service
    cdef public Py_ssize_t count
    cdef public bint dynamic, durable, refused
    cdef public Traffic traffic

cdef class Epoch:
    cdef public long long value
