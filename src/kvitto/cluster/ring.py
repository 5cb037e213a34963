"""The last records of the stream, in memory, one ring for all followers. The loop puts, and each link reads at a place of its own.

Its bytes are bounded, so a follower that is slower than the leader for long finds that its place is gone, and has to compare its files
(docs/adr/0032). Nothing ever waits for a follower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvitto.cluster.records import HEADER, PAYLOAD_BYTES_MAX, Kind, covered, sync_payloads
from kvitto.store.disk import Bytes

RING_BYTES = 64 << 20
TELL_BYTES = 256 << 10
OVERHEAD = 256
"""What a record takes beside its payload: three objects and an entry of a dictionary."""


class Tap(Protocol):
    """Takes the operations of a disk, in order."""

    def put(self, kind: Kind, file: int, position: int, payload: Sequence[Bytes]) -> int:
        """Add a record to the stream, and copy its bytes, because the caller uses its buffers again. Return its place."""
        ...

    def sync_point(self, files: Sequence[int], directories: Sequence[str]) -> int:
        """Add a SYNC record, and return its place. A follower that acknowledges this place has everything before it on its disk."""
        ...


class Ring:
    def __init__(self, most: int = RING_BYTES, first: int = 0, tell: int = TELL_BYTES) -> None:
        """`most`: the bytes of records that are kept. `first`: the place of the first record. `tell`: if more bytes than this have come
        since the last sync point, followers are sent them without waiting for the next one."""
        self.first = first
        """The place of the oldest record that the ring still has."""
        self.next = first
        """The place of the next record."""
        self.total = 0
        """The bytes of all records that were ever put into the ring."""
        self.on_put: Callable[[], object] = nothing
        """The function that is called when there is something to send."""
        self.told = first
        """Followers are sent the records before this place. It moves on at each sync point, and when `tell` bytes have come without one.
        All followers are sent the same, so that whoever is elected has what the others have, and they need not compare files."""
        self._told_bytes = 0
        self._most = most
        self._tell = tell
        self._size = 0
        self._records: dict[int, tuple[bytes, bytes, int]] = {}

    def put(self, kind: Kind, file: int, position: int, payload: Sequence[Bytes]) -> int:
        data = bytes(payload[0]) if len(payload) == 1 else b"".join(payload)
        if len(data) <= PAYLOAD_BYTES_MAX:
            return self._put(kind, file, position, data)
        assert kind == Kind.WRITE, "only writes have parts"
        for at in range(0, len(data), PAYLOAD_BYTES_MAX):
            self._put(kind, file, position + at, data[at : at + PAYLOAD_BYTES_MAX])
        return self.next - 1

    def keep(self, kind: int, file: int, position: int, payload: bytes) -> None:
        """Add a record as it came from a leader, whose next place is the ring's next one."""
        self._put(kind, file, position, payload)

    def sync_point(self, files: Sequence[int], directories: Sequence[str]) -> int:
        for payload in sync_payloads(files, directories):
            self._put(Kind.SYNC, 0, 0, payload)
        return self.next - 1

    def _put(self, kind: int, file: int, position: int, data: bytes) -> int:
        place = self.next
        self.total += HEADER.size + len(data)
        self._records[place] = covered(kind, file, position, len(data)), data, self.total
        self.next = place + 1
        self._size += len(data) + OVERHEAD
        while self._size > self._most:
            _, oldest, _ = self._records.pop(self.first)
            self._size -= len(oldest) + OVERHEAD
            self.first += 1
        # Writes go out with the sync point behind them. One send for each of them would cost more than all else that a follower costs.
        if kind >= Kind.SYNC or self.total - self._told_bytes > self._tell:
            self.told, self._told_bytes = self.next, self.total
            self.on_put()
        return place

    def at(self, place: int) -> tuple[bytes, bytes, int]:
        """Return the record at a place that the ring still has: its header without the checksum, its payload, and the `total` behind it."""
        return self._records[place]

    def total_before(self, place: int) -> int:
        """Return the bytes of all records before `place`, which the ring still has, or which is the next one."""
        if place == self.next:
            return self.total
        _, data, total = self._records[place]
        return total - HEADER.size - len(data)


def nothing() -> None:
    """The `on_put` of a ring that nobody reads."""
