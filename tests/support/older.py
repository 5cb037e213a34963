"""A data directory as versions of Kvitto left it that had no inventory (format version 1)."""

from __future__ import annotations

import xxhash

from kvitto.store.slot import SLOT
from tests.support.simdisk import SimDisk


def without_inventory(disk: SimDisk) -> None:
    """Nothing but the files themselves tells what should be there."""
    disk.unlink("inventory")
    replace(disk, "format", b"kvitto 1\n")
    if disk.files().get("boot") == b"in order\n":
        replace(disk, "boot", b"")
    for path, content in disk.files().items():
        if path.endswith("/offsets"):
            slots = (content[at : at + SLOT] for at in range(0, len(content), SLOT))
            replace(disk, path, b"".join(old_slot(slot) for slot in slots))


def old_slot(slot: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(slot[8:]).to_bytes(8, "little") + slot[8:] if any(slot) else slot


def replace(disk: SimDisk, path: str, content: bytes) -> None:
    """What is certain on the disk, too."""
    inode = disk._names[path]
    assert inode is not None
    inode.pending.clear()
    inode.live[:] = inode.certain[:] = content
