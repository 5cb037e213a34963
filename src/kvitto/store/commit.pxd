cimport cython
from kvitto.store.segment cimport Segment

cdef class Commit:
    cdef object __weakref__
    cdef public object disk, error, acks, seals, unlinks, hurried, unhurried, announcements, carried
    cdef public list files, dirs, segments
    cdef public unsigned long long journal_applied, number
    cdef public object journal_written
    cdef public Py_ssize_t defined, compacted, size
    cdef public bint named, others
    cdef public double seconds
    cdef public dict _paths

cdef class GroupCommit:
    cdef object __weakref__
    cdef dict __dict__
    cdef public object begun, allowed
    cdef public Commit running
    cdef public unsigned long long syncs
    cdef public Py_ssize_t unsynced
    cdef public bint syncing, in_haste, waiting, _messages_wanted
    cdef object _disk, _unannounced
    cdef dict _segments, _acks, _dirs, _files, _clean
    cdef public list _hurried
    cdef list _seals, _unlinks, _closing, _unhurried, _announcements, _carried

    @cython.locals(segment=Segment, commit=Commit)
    cpdef Commit begin(self, bint everything)
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

@cython.locals(end="unsigned long long")
cdef _tell(Commit commit)
