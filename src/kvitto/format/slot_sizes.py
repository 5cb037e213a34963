"""The second half of an inventory's slot (`layouts.SlotSizes`), which is written behind each sync.

`slot_sizes.pxd` holds the inline C twins.
"""

from __future__ import annotations

from kvitto.format.layouts import SLOT_SIZES
from kvitto.wire import bits

SIZE = SLOT_SIZES.size
SIZE_AT = SLOT_SIZES.at["size"]
ACKS_SIZE_AT = SLOT_SIZES.at["acks_size"]
END_AT = SLOT_SIZES.at["end"]
CHECKSUM_AT = SLOT_SIZES.at["checksum"]


def put(p: bytearray, size: int, acks_size: int, end: int) -> None:
    """Write the sizes into `p`, a buffer of zeros."""
    bits.put_le64(p, SIZE_AT, size)
    bits.put_le64(p, ACKS_SIZE_AT, acks_size)
    bits.put_le64(p, END_AT, end)


def put_checksum(p: bytearray, checksum: int) -> None:
    bits.put_le64(p, CHECKSUM_AT, checksum)
