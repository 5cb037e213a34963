cimport cython
from kvitto.base.clock cimport Clock
from kvitto.base.turn_part cimport TurnPart
from kvitto.store.commit cimport Commit, GroupCommit
from kvitto.store.inventory cimport Inventory
from kvitto.store.log cimport Log
from kvitto.store.room cimport Room
from kvitto.store.segment cimport Segment

cdef class Store:
    cdef dict __dict__
    cdef object __weakref__
    cdef public Clock clock
    cdef public object disk, definitions, journal, failed, on_fault, ending
    cdef public TurnPart removals, copies
    cdef public GroupCommit commits
    cdef public Inventory inventory
    cdef public Room room
    cdef public bint faulty, pressed, upgrading, ended_in_order, _may_compact, _naming, _boot_owes_flags, _flags_noted
    cdef public unsigned long long _written_out
    cdef public dict blocked_drops, leaving, owed_flags

    cpdef bint enter(self, Log log_, Segment segment) except? 0
    cpdef bint has_work(self) except -1
    @cython.locals(commit=Commit)
    cpdef Commit begin_sync(self, bint everything, Py_ssize_t most=*)
    # a log is no Log here: a bound method of a typed variable would be that of Log, and not that of StreamLog
    @cython.locals(commits=GroupCommit, segment=Segment, fresh=bint)
    cpdef end_sync(self, Commit commit)
    @cython.locals(new=bint, changed=dict, grown=dict, log_=Log, segment=Segment, size=Py_ssize_t, end="unsigned long long")
    cdef tuple _note_synced(self, Commit commit)
