cimport cython
from kvitto.store.segment cimport Segment

cdef class Commit:
    cdef object __weakref__
    cdef public object disk, error, acks, seals, unlinks, hurried, unhurried, announcements
    cdef public Commit earlier
    cdef public bint put_off, begins, completes
    cdef public list files, dirs, segments
    cdef public unsigned long long journal_applied, number
    cdef public object journal_written
    cdef public Py_ssize_t defined, compacted, size
    cdef public bint named, others, notes_flags
    cdef public double seconds
    cdef public dict _paths

    @cython.locals(segment=Segment, size=Py_ssize_t, waiting=Py_ssize_t)
    cpdef bint is_small(self) except -1
    cpdef run(self)

cdef class GroupCommit:
    cdef object __weakref__
    cdef dict __dict__
    cdef public object begun, allowed
    cdef public Commit running
    cdef public unsigned long long syncs
    cdef public Py_ssize_t unsynced, awaited, new_files, new_before, load, load_before
    cdef public bint syncing, in_haste, waiting, urgent, messages_wanted
    cdef object _disk, _unannounced
    cdef public dict rest
    cdef dict _segments, _acks, _named, _dirs, _files, _clean
    cdef public list _hurried
    cdef list _seals, _unlinks, _closing, _unhurried, _announcements
    cdef Commit _put_off

    @cython.locals(segment=Segment, commit=Commit)
    cpdef Commit begin(self, bint everything, Py_ssize_t most=*)
    @cython.locals(segment=Segment)
    cdef _take_settlements(self, Commit commit, Py_ssize_t most)
    cpdef wrote(self, object log, Segment segment, Py_ssize_t size=*)
    cpdef settled(self, object log, Segment segment)
    cpdef end(self, Commit commit)
    cpdef call_back(self, Commit commit)
    cpdef call_for_clean(self)
    cpdef announce(self, Commit commit)
    @cython.locals(commit=Commit)
    cpdef allow(self, object number)
    cpdef when_synced(self, object callback, bint messages=*)
    cpdef when_announced(self, object callback, bint messages=*)
    cpdef when_confirmed(self, object callback, Py_ssize_t count)

cdef _call_back(Commit commit)
cdef bint _has_news(Commit commit) except -1
cdef _tell(Commit commit)
@cython.locals(end="unsigned long long")
cdef _announce(Commit commit)
