"""Named limits: each length from the wire or the disk is checked against one before anything is allocated.

Limits that a user may set are values of a broker (`Limits`). The others follow from the protocol, or from the way the
broker is built. A limit that a user may set has a field in `Limits`, a line in `SETTABLE`, the name of its refusals in
`REFUSALS`, and both its lines in docs/limits.md; the fuzzer makes it small (tests/fuzz/sessions/setting.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KIB = 1024
MIB = 1024 * KIB

# the wire
CHANNEL_MAX = 2047
"""Channels per connection that the server offers in tune (W1)."""
FRAME_MAX = 131_072
"""Frame size in bytes, with its 8 bytes of overhead, that the server offers in tune (W1)."""
HEADER_BYTES = 20
"""Bytes of a content header's frame without the properties."""
PROPERTIES_MAX = FRAME_MAX - HEADER_BYTES
"""The maximum number of bytes of a message's properties, because a content header is one frame."""
FRAME_MIN = 4096
"""The smallest frame_max a peer may ask for (AMQP 0-9-1, 4.2.3)."""
HEARTBEAT_S = 60
"""Heartbeat interval that the server offers in tune (W1)."""
BODY_S = 60.0
"""A connection ends if nothing arrives of an incomplete message for this time."""
TX_ENTRY_BYTES = 256
"""Bytes that a publish or a settlement in a transaction counts in addition to the bytes of its message."""
SHORTSTR_MAX = 255
"""Bytes in a short string: names, routing keys."""
TABLE_DEPTH_MAX = 32
"""The maximum nesting of tables and arrays; deeper ones are malformed."""

# limits that nobody sets
REFUSED_MAX = 256
"""The number of connections above the limit that get an answer at one time; further ones are closed without one."""
BACKUP_SILENCE_MS = 60_000
"""A backup is given up if whoever takes it has not asked for its state for this time: it keeps files that take room."""
FILES_RESERVE = 1024
"""File descriptors that connections and new queues leave to HTTP, the journal and further segments; at most an eighth of all."""
FILES_PER_QUEUE = 2
"""A queue needs one for a segment and one for its settlement log."""
SETTLEMENT_LOGS_PER_COMMIT = 32
"""A commit syncs so many settlement logs, for which nobody waits; a full sync of more takes several commits (server/driving.py)."""
NEW_FILES_PER_COMMIT = 16
"""A commit has so many new segments before further queues without files wait for the next one (broker/queues/later_writes.py)."""
LOAD_PER_COMMIT = 64
"""A commit has so many writes, or units of 16 KiB, of queues that yield to others before further ones wait for the next commit."""
CHANGES_OF_ONE = 32
"""A source of changes, such as the input of a connection in one turn, changes so many queues before further ones yield to others."""
BUFFERED_SHARE = 2
"""One user may have one part in this many of `buffered_max`."""

REFUSALS = (
    "bindings",
    "body",
    "connections",
    "consumers",
    "exchanges",
    "channels",
    "frame",
    "handshake",
    "held",
    "http_body",
    "http_connections",
    "http_head",
    "queues",
    "routing",
    "stages",
    "table_depth",
    "transaction",
    "unacked",
    "unfinished",
)
"""The limits that `kvitto_refused_total` counts; docs/limits.md says what each means."""

HISTORY_BYTES = 64 * MIB
"""The maximum number of bytes in the history of one x-recent-history exchange."""
FILTERS_MAX = 256
"""The maximum number of conditions in the filter of a stream's consumer."""

# the store
SEGMENT_BYTES = 64 * MIB
"""A segment of this size is sealed, and the next one is begun."""
NAME_MAX = 255
"""Bytes in the name of a queue, exchange, virtual host or user."""

PASSWORD_MAX = 4096
"""The maximum number of bytes of a password, because the AMQP frame with a password has space for little more."""

# policies
POLICY_COST_MAX = 20_000
"""What looking for the policies of one name may cost in one virtual host, in units of about a microsecond at worst. A usual policy
costs 10. Each declaration pays this, whoever has set the policies."""

# deduplication
KNOWN_KEYS = 128
"""The number of keys that a queue with deduplication remembers if it does not say how many, as with LavinMQ."""
KNOWN_KEYS_MAX = 10_000_000
"""The maximum of that number; each key takes about 50 bytes of memory."""
KEYED_COMMIT_MAX = 20_000
"""The most messages of one transaction for a queue with deduplication: they are compared in one step, which takes about 10 ms then."""

# the management API
HTTP_LINES_MAX = 200
"""The maximum number of lines in the head of a request, and in what may follow a body in chunks: the parser takes about
1 ms for 1,000."""
HTTP_VALUES_MAX = 10_000
"""The maximum number of values in a request's JSON: the parser needs seconds for 16 MiB of nested arrays, and the
broker does nothing else meanwhile."""
HTTP_HISTORIES_MAX = 1000
"""Objects whose numbers of the last hour are kept, about 16 KB each."""
HTTP_SAMPLES_MAX = 200
"""Samples of each number that a request may ask for."""
HTTP_BATCH_MAX = 500
"""Messages in one publish."""
DEFINITIONS_MAX = 2_000_000
"""The maximum number of items in one list of a document of definitions."""
DEFINITION_MEMBERS_MAX = 100
"""The maximum number of members of a document of definitions; RabbitMQ writes about 15."""
DEFINITION_BYTES_MAX = 128 * KIB
"""The maximum number of bytes of one item of a document of definitions, which is parsed in one step."""
DEFINITION_VALUES_MAX = 4000
"""The maximum number of values, brackets and strings in one such item. They are parsed in about 1 ms."""
JSON_DEPTH_MAX = 40
"""The maximum nesting of objects and lists in JSON that is stored: writing it must not exhaust the stack."""


SETTABLE: dict[str, tuple[float, float]] = {
    "handshake_s": (0.1, 600),
    "handshake_frame_max": (FRAME_MIN, FRAME_MAX),
    "body_max": (FRAME_MAX, 512 * MIB),
    "unfinished_max": (FRAME_MAX, 64 * 1024 * MIB),
    "tx_max": (MIB, 512 * MIB),
    "transactions_max": (MIB, 64 * 1024 * MIB),
    "buffered_max": (MIB, 1024 * 1024 * MIB),
    "unacked_max": (1, 1 << 31),
    "channels_max": (1, 1 << 31),
    "exchanges_max": (16, 1 << 31),
    "bindings_max": (1, 1 << 31),
    "route_steps_max": (1000, 1 << 31),
    "routing_steps_max": (1000, 1 << 34),
    "copies_max": (0, 1 << 20),
    "consumers_max": (1, 1 << 31),
    "http_head_max": (KIB, MIB),
    "http_body_max": (KIB, 512 * MIB),
    "http_document_max": (KIB, 512 * MIB),
    "http_definitions_max": (KIB, 512 * MIB),
    "http_bodies_max": (KIB, 64 * 1024 * MIB),
}
"""Name in the configuration -> its minimum and maximum: bytes, seconds for a name that ends in `_s`, else a number of objects."""
NOT_ABOVE = (
    ("body_max", "unfinished_max"),
    ("unfinished_max", "buffered_max"),
    ("tx_max", "transactions_max"),
    ("transactions_max", "buffered_max"),
)
"""Pairs of limits: the first must not be above the second, which counts the same bytes too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one broker that its user may set, in the table [limits] of the configuration (docs/limits.md).

    Code reads each as `broker.limits.NAME` when it needs it. `of` makes them, and says which values
    are possible.
    """

    handshake_s: float = 10.0
    """A peer that has not opened its connection by then is disconnected."""
    handshake_frame_max: int = 8 * KIB
    """Frame size in bytes until the connection is tuned: a peer gets no larger frames before login (RabbitMQ's
    initial_frame_max)."""
    body_max: int = 128 * MIB
    """The largest message body; a header that announces more closes the channel with 311."""
    unfinished_max: int = 256 * MIB
    """The maximum number of bytes in incomplete bodies on all channels of one connection."""
    tx_max: int = 256 * MIB
    """Bytes in one transaction. It is in memory until its commit, and becomes one record of the journal."""
    transactions_max: int = 512 * MIB
    """Bytes in all open transactions of one connection."""
    buffered_max: int = 1024 * MIB
    """Bytes in incomplete messages and in transactions, on all connections together."""
    unacked_max: int = 1_000_000
    """Unsettled deliveries of one channel, 24 bytes each. Above it consumers get no more, and basic.get is refused."""
    channels_max: int = 500_000
    """Channels of all connections; an idle one takes about 1.5 KB."""
    exchanges_max: int = 100_000
    """Exchanges in one virtual host."""
    bindings_max: int = 1_000_000
    """Bindings in one virtual host; one takes about 0.8 KB."""
    route_steps_max: int = 1_000_000
    """Steps of routing that an exchange may need for one message: headers to compare, positions in topic patterns. A
    step takes about 0.1 us."""
    routing_steps_max: int = 8_000_000
    """Steps over all exchanges and routing keys (CC, BCC) of one message."""
    copies_max: int = 1000
    """Routing keys in CC and BCC together."""
    consumers_max: int = 10_000
    """Consumers of one queue, and of one connection."""
    http_head_max: int = 64 * KIB
    http_body_max: int = 16 * MIB
    """The largest body of a publish."""
    http_document_max: int = MIB
    """The largest body of any other request."""
    http_definitions_max: int = 32 * MIB
    """The largest document of definitions that is imported over HTTP."""
    http_bodies_max: int = 64 * MIB
    """Bytes in bodies of all HTTP requests together."""


DEFAULTS = Limits()


def of(values: Mapping[str, Any]) -> Limits:
    """Return the limits with these values in place of defaults. Raise ValueError for a name or a value that a user must not set."""
    for name, value in values.items():
        if name not in SETTABLE:
            raise ValueError(f"unknown limit {name!r}")
        whole = not name.endswith("_s")  # in Python bool is an int, but not for people
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ValueError(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}")
        least, most = SETTABLE[name]
        if not least <= value <= most:
            raise ValueError(f"{name} must be {least} to {most}, not {value}")
    limits = Limits(**values)
    for small, large in NOT_ABOVE:
        part, total = getattr(limits, small), getattr(limits, large)
        if part > total:
            raise ValueError(f"{small} is {part}, more than {large}, {total}, which it counts in")
    return limits
