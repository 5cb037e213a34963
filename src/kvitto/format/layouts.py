"""The magics and layouts of all binary files in a data directory. docs/formats.md says what they mean, and a test compares the two.

The store writes and reads files by these layouts, and format("kvitto-archive") of Spark reads them without the broker. A layout is
declared once, as the fields of a NamedTuple: names, types, offsets and sizes all follow from that. All integers are little-endian,
and fields lie one directly behind the other. The other modules here have fast accessors for compiled callers.

Fields that are called `zero` are not used: they are written as zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar, get_type_hints

Bytes = bytes | bytearray | memoryview

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Bytes4 = Annotated[bytes, "4s"]
Bytes8 = Annotated[bytes, "8s"]
Bytes16 = Annotated[bytes, "16s"]
Bytes24 = Annotated[bytes, "24s"]
Bytes32 = Annotated[bytes, "32s"]
Bytes44 = Annotated[bytes, "44s"]

T = TypeVar("T", bound=NamedTuple)


class Layout(Generic[T]):
    """How the fields of the NamedTuple `fields` lie on disk.

    `at` has the position of each field, `codes` its code for `struct` (which numpy understands too), `size` is that of all of them.
    """

    def __init__(self, fields: type[T]) -> None:
        hints = get_type_hints(fields, include_extras=True)
        self.codes: dict[str, str] = {name: hint.__metadata__[0] for name, hint in hints.items()}
        self.struct = Struct("<" + "".join(self.codes.values()))
        self.size = self.struct.size
        self.at: dict[str, int] = {}
        at = 0
        for name, code in self.codes.items():
            self.at[name] = at
            at += Struct("<" + code).size
        self.pack: Callable[..., bytes] = self.struct.pack
        """Encodes a value for each field, in their order. Raises struct.error for a value that does not fit."""
        self._fields: Any = fields

    def before(self, name: str) -> Struct:
        """The fields before this one."""
        codes = list(self.codes.values())[: list(self.codes).index(name)]
        return Struct("<" + "".join(codes))

    def read(self, data: Bytes, at: int = 0) -> T:
        """The fields at `at`. Raises struct.error if `data` ends before them."""
        return self._fields._make(self.struct.unpack_from(data, at))  # type: ignore[no-any-return]


def u32(data: Bytes, at: int = 0) -> int:
    """The integer of 4 bytes at `at`; what is behind the end of `data` counts as zeros."""
    return int.from_bytes(data[at : at + 4], "little")


def u64(data: Bytes, at: int = 0) -> int:
    """The integer of 8 bytes at `at`; what is behind the end of `data` counts as zeros."""
    return int.from_bytes(data[at : at + 8], "little")


bytes_of: Callable[[int], bytes] = Struct("<Q").pack
"""Encodes an integer of 8 bytes: a checksum, a salt, or the position of a footer."""


# --- segments and settlement logs

SEGMENT_MAGIC: Final = b"KVITSEG1"
SETTLEMENTS_MAGIC: Final = b"KVITACK1"
SEGMENT_VERSION: Final = 1


class FileHead(NamedTuple):
    """What a segment begins with, and a settlement log. The checksum covers what is before it."""

    magic: Bytes8
    version: U32
    zero: U32
    queue_id: Bytes16
    base: U64
    created_ms: U64
    salt: U64
    checksum: U64
    salt_again: U64


FILE_HEAD: Final = Layout(FileHead)


class Prefix(NamedTuple):
    """What a batch, a block of settlements and a record of the journal begin with.

    `length` is that of the whole, and the checksum covers everything behind this prefix.
    """

    magic: Bytes4
    length: U32
    checksum: U64


PREFIX: Final = Layout(Prefix)
CHECKSUM: Final = slice(PREFIX.at["checksum"], PREFIX.size)
"""Where the checksum is in each of these."""

BATCH_MAGIC: Final = b"KVB1"


class BatchHead(NamedTuple):
    """What a batch begins with; index, meta data and bodies follow."""

    magic: Bytes4
    length: U32
    checksum: U64
    first: U64
    time_ms: U64
    messages: U32
    meta_len: U32
    body_len: U32
    zero: U32
    journal: U64
    durable: U64


BATCH: Final = Layout(BatchHead)


class Entry(NamedTuple):
    """A message's entry in the index of its batch. `meta` and `body` are positions in the two areas behind the index."""

    meta: U32
    body: U32
    body_len: U32
    props_len: U32
    key_len: U16
    flags: U8
    ttl_high: U8
    ttl_low: U32


ENTRY: Final = Layout(Entry)

FOOTER_MAGIC: Final = b"KVITFOOT"


class Footer(NamedTuple):
    """What the footer of a sealed segment begins with; `pairs` pairs (first offset, file position) follow, then a FooterEnd."""

    magic: Bytes8
    length: U32
    pairs: U32
    base: U64
    end: U64
    messages: U64
    journal: U64
    body_bytes: U64


FOOTER: Final = Layout(Footer)


class FooterEnd(NamedTuple):
    """The end of a sealed segment. The checksum covers all of the footer that is before it; `position` is where the footer begins."""

    checksum: U64
    position: U64


FOOTER_END: Final = Layout(FooterEnd)

BLOCK_MAGIC: Final = b"KVS1"


class BlockHead(NamedTuple):
    """What a block of settlements begins with; its entries follow. `mark`: every offset below it has been delivered."""

    magic: Bytes4
    length: U32
    checksum: U64
    time_ms: U64
    mark: U64
    entries: U32
    durable: U32


BLOCK: Final = Layout(BlockHead)


class Settlement(NamedTuple):
    """One settlement. The lower 24 bits of `word` are the count of offsets, its upper 8 bits are the outcome."""

    offset: U64
    word: U32
    deliveries: U32


SETTLEMENT: Final = Layout(Settlement)

GAP_MAX: Final = 1 << 40
"""Offsets that may be missing behind damage: more were never given away while a segment was the last."""
RESYNC_BYTES: Final = 8 << 30
"""Bytes that one search for the next batch or record checks: a body may be full of what begins like one and is none."""

# --- journal

RECORD_MAGIC: Final = b"KVJ1"


class RecordHead(NamedTuple):
    """What a record of the journal begins with; `operations` operations follow."""

    magic: Bytes4
    length: U32
    checksum: U64
    sequence: U64
    operations: U32
    durable: U32


RECORD: Final = Layout(RecordHead)

APPEND_KIND: Final = 1
SETTLE_KIND: Final = 2
RUN_KIND: Final = 3


class AppendHead(NamedTuple):
    """An operation that appends a message; key, properties and body follow."""

    kind: U8
    queue_id: Bytes16
    key_len: U16
    flags: U8
    ttl_high: U8
    ttl_low: U32
    props_len: U32
    body_len: U32


APPEND: Final = Layout(AppendHead)


class SettleOperation(NamedTuple):
    """An operation that settles `messages` messages from `offset` on."""

    kind: U8
    queue_id: Bytes16
    offset: U64
    messages: U32
    outcome: U8


SETTLE: Final = Layout(SettleOperation)


class RunHead(NamedTuple):
    """An operation that appends many messages to one queue; index, meta data and bodies follow as in a batch."""

    kind: U8
    queue_id: Bytes16
    messages: U32
    meta_len: U32
    body_len: U32


RUN: Final = Layout(RunHead)

# --- inventory

INVENTORY_MAGIC: Final = b"KVITINV1"
INVENTORY_VERSION: Final = 1


class InventoryHead(NamedTuple):
    """The first half of the inventory's first slot. The second one is a SlotSizes whose size is the number of slots behind it."""

    magic: Bytes8
    version: U32
    zeros: Bytes44
    checksum: U64


INVENTORY: Final = Layout(InventoryHead)


class SlotName(NamedTuple):
    """The first half of an inventory's slot: which file it is about. The checksum covers what is before it."""

    kind: U32
    zero: U32
    queue_id: Bytes16
    number: U64
    zeros: Bytes24
    checksum: U64


SLOT_NAME: Final = Layout(SlotName)


class SlotSizes(NamedTuple):
    """The second half of an inventory's slot: how much of the file has been synced. The checksum's seed is that of the first half."""

    size: U64
    acks_size: U64
    end: U64
    zeros: Bytes32
    checksum: U64


SLOT_SIZES: Final = Layout(SlotSizes)

# --- offsets of a stream's consumers

TAG_SLOT_SIZE: Final = 512


class TagSlot(NamedTuple):
    """What a slot of the file `offsets` begins with; the consumer's tag follows, and zeros up to TAG_SLOT_SIZE.

    The checksum covers all of the slot that is behind it.
    """

    checksum: U64
    sequence: U64
    offset: U64
    time_ms: U64
    tag_len: U8


TAG_SLOT: Final = Layout(TagSlot)
