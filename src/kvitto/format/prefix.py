"""The checksum in what begins a batch, a block of settlements and a record of the journal (`layouts.Prefix`).

`prefix.pxd` holds the inline C twin.
"""

from __future__ import annotations

from kvitto.format.layouts import PREFIX
from kvitto.wire import bits

SIZE = PREFIX.size
CHECKSUM_AT = PREFIX.at["checksum"]


def put_checksum(p: bytearray, checksum: int) -> None:
    """Write the checksum of what lies behind the prefix, which begins at the begin of `p`."""
    bits.put_le64(p, CHECKSUM_AT, checksum)
