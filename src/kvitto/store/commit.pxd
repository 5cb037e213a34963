cimport cython

cdef class Commit:
    cdef object __weakref__
    cdef public object disk, error
    cdef public list files, dirs, segments, acks, seals, unlinks, hurried, unhurried, announcements, carried
    cdef public unsigned long long journal_applied, number
    cdef public object journal_written
    cdef public Py_ssize_t defined, compacted, size
    cdef public bint named
    cdef public double seconds
    cdef public dict _paths

cdef class GroupCommit:
    cdef object __weakref__
    cdef dict __dict__
    cdef public object begun, allowed
    cdef public Commit running
    cdef public unsigned long long syncs
    cdef public Py_ssize_t unsynced
    cdef public bint in_haste, waiting, _messages_wanted
    cdef object _disk, _unannounced
    cdef dict _segments, _acks, _dirs, _files, _clean
    cdef public list _hurried
    cdef list _seals, _unlinks, _closing, _unhurried, _announcements, _carried
