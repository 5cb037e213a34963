from kvitto.base cimport ticks

cdef class Clock:
    cpdef long long now_ms(self) except? -1
    cpdef long long monotonic_ms(self) except? -1
    cpdef long long monotonic_us(self) except? -1

cdef class SystemClock(Clock):
    cpdef long long now_ms(self) except? -1
    cpdef long long monotonic_ms(self) except? -1
    cpdef long long monotonic_us(self) except? -1
