"""The checksum in the prefix with which a batch, a block of settlements and a record of the journal begin (`layouts.Prefix`).

`prefix.pxd` holds the inline C twin.
"""

from __future__ import annotations

from kvitto.format.layouts import PREFIX
from kvitto.wire import bits

SIZE = PREFIX.size
CHECKSUM_AT = PREFIX.at["checksum"]


def put_checksum(p: bytearray, checksum: int) -> None:
    """Write the checksum into the prefix at the start of `p`. It covers what lies behind the prefix."""
    bits.put_le64(p, CHECKSUM_AT, checksum)
