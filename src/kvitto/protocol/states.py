"""A connection's states in their order: closing = our Close is out, closed = nothing more is said."""

HEADER, START, TUNE, OPEN, RUNNING, CLOSING, CLOSED = range(7)
