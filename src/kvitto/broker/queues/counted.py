"""The one attribute of a set of offsets that compiled code reads for every run of messages (broker/queues/ranges.py has the sets)."""

from __future__ import annotations


class Counted:
    def __init__(self) -> None:
        self.count = 0
        """The number of offsets in the set."""
