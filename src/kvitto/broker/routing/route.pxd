from kvitto.broker.queues.queue cimport Queue

cdef class Route:
    cdef public str exchange, routing_key
    cdef public list queues
    cdef public Queue first
    cdef public object out_of_service
    cdef public Py_ssize_t count
    cdef public bint dynamic, durable, refused

cdef class Epoch:
    cdef public long long value
