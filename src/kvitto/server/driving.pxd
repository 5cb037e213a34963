cimport cython
from kvitto.base cimport ticks
from kvitto.base.clock cimport Clock
from kvitto.broker.turning cimport Turning
from kvitto.protocol.driver cimport Driver
from kvitto.protocol.hub cimport Hub
from kvitto.server.gathering cimport Gathering
from kvitto.server.pacing cimport Pacing
from kvitto.server.poller cimport Rounds
from kvitto.server.syncer cimport Syncer
from kvitto.store.commit cimport Commit, GroupCommit
from kvitto.store.store cimport Store
from kvitto.wire.buf cimport Buf

cdef class Driving(Driver):
    cdef dict __dict__
    cdef object __weakref__
    cdef public Store store
    cdef public Clock clock
    cdef public Turning broker
    cdef public Hub hub
    cdef public Gathering gathering
    cdef public Pacing pacing
    cdef public object poller
    cdef public Rounds rounds
    cdef public object _loop, _due, _lazy, _timer, _error, tenure
    cdef public Syncer _syncer
    cdef public bint _turn_wanted, _left, lagging
    cdef public int _quick, _without
    cdef public long long _timer_ms
    cdef public double _full_sync_at
    cdef public Py_ssize_t received, _heard
    cdef public Buf inbox

    cpdef schedule(self)
    cpdef _turn_behind_input(self)
    @cython.locals(began=double, now=double)
    cpdef _do_turn(self)
    @cython.locals(idle=bint, calm=bint, pressed=bint, everything=bint, store=Store, pacing=Pacing)
    cdef _drive_sync(self, double now, bint slow)
    @cython.locals(commit=Commit, commits=GroupCommit, settlements=bint, full=bint, may_be_slow=bint)
    cdef bint _begin(self, bint everything, bint idle) except? 0
    @cython.locals(commits=GroupCommit)
    cdef bint _waits_for_more(self, double now) except -1
    cpdef _end_sync(self, Commit commit)
    @cython.locals(now_ms="long long")
    cdef _arm_timer(self)
