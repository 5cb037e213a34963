"""The states of a connection in their order. CLOSING: Close was sent. CLOSED: nothing more is sent."""

HEADER, START, TUNE, OPEN, RUNNING, CLOSING, CLOSED = range(7)
