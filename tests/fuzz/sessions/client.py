"""What a peer knows: what it has sent, and what it has been told. The grammar draws from it, the oracle holds the broker to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvitto.base.errors import ProtocolError
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PROTOCOL_HEADER

if TYPE_CHECKING:
    from tests.fuzz.sessions.oracle import Oracle

Waiting = tuple[str, str, bytes]
"""Queue, its incarnation, body: a publish that the oracle follows."""


@dataclass(eq=False)
class Channel:
    """One life of a channel."""

    number: int
    opened: bool = False
    """The broker has said so."""
    closed: bool = False
    """By the broker: it waits for our close-ok."""
    left: bool = False
    """By us."""
    unsure: bool = False
    """What was sent here cannot be told from what the broker ignored."""
    confirm: bool = False
    staged: bool = False
    tx: bool = False
    sequence: int = 0
    unconfirmed: dict[int, Waiting | None] = field(default_factory=dict)
    held: list[Waiting] = field(default_factory=list)
    committing: list[list[Waiting]] = field(default_factory=list)
    out: dict[int, tuple[str, bytes, str]] = field(default_factory=dict)
    """Delivery tag -> queue ("" if unknown), body, consumer ("" for a get)."""
    last_tag: int = 0
    consumers: dict[str, str] = field(default_factory=dict)
    unnamed: list[tuple[m.BasicConsume, int]] = field(default_factory=list)
    """Consumers that the broker is to name, and their prefetch."""
    reads: set[str] = field(default_factory=set)
    """Tags of log.read."""
    limits: dict[str, int] = field(default_factory=dict)
    """Consumer -> its prefetch, where deliveries are to be acknowledged."""
    no_acks: set[str] = field(default_factory=set)
    gets: list[tuple[str, bool]] = field(default_factory=list)
    """Queue, and whether without an ack, of each get that is not answered."""
    prefetch: int = 0
    prefetch_all: int = 0
    lowering: list[int] = field(default_factory=list)
    """What global prefetch was before each qos that is not answered."""
    recovering: int = 0
    loose: bool = False
    """Everything was acked without knowing what."""
    purging: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        return not (self.closed or self.left)


@dataclass
class Content:
    """A message whose frames come one by one."""

    method: Method
    size: int = -1
    properties: bytes = b""
    body: bytes = b""


class Client:
    def __init__(self, oracle: Oracle, slot: int) -> None:
        self.oracle = oracle
        self.slot = slot
        self.user = ""
        self.vhost = "/"
        self.frame_max = 131072
        self.channels: dict[int, list[Channel]] = {}
        """Number -> its lives: the last is the one that we send on, the first the one that we hear."""
        self.wild = False
        """It has sent what is no frame."""
        self.told_to_close = False
        self.late = False
        """What it hears now has been on its way for a while."""
        self._sent = bytearray()
        self._sending: dict[int, Content] = {}
        self._hearing: dict[int, Content] = {}

    # -- what the grammar asks -------------------------------------------------------------------------------

    def open(self) -> list[Channel]:
        return [lives[-1] for lives in self.channels.values() if lives[-1].usable]

    # -- sent ------------------------------------------------------------------------------------------------

    def sent(self, data: bytes) -> None:
        self._sent += data
        if self._sent.startswith(PROTOCOL_HEADER):
            del self._sent[: len(PROTOCOL_HEADER)]
        while len(self._sent) >= 8 and not self.wild:
            end = 8 + int.from_bytes(self._sent[3:7], "big")
            if len(self._sent) < end:
                return
            frame, self._sent = bytes(self._sent[:end]), self._sent[end:]
            self._sent_frame(frame[0], int.from_bytes(frame[1:3], "big"), frame[7:-1], frame[-1])

    def _sent_frame(self, kind: int, number: int, payload: bytes, end: int) -> None:
        content = self._sending.get(number)
        if end != 0xCE or kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, 8):
            self.wild = True
        elif kind == FRAME_METHOD:
            try:
                method = decode(payload)
            except ProtocolError:
                self.wild = True
                return
            if content is not None:
                self.wild = True
            elif isinstance(method, m.BasicPublish):
                self._sending[number] = Content(method)
            else:
                self._sent_method(number, method)
        elif content is not None:
            self._sent_content(number, kind, payload, content)

    def _sent_content(self, number: int, kind: int, payload: bytes, content: Content) -> None:
        if kind == FRAME_HEADER and len(payload) >= 14:
            content.size, content.properties = int.from_bytes(payload[4:12], "big"), payload[12:]
        elif kind == FRAME_BODY:
            content.body += payload
        if content.size >= 0 and len(content.body) >= content.size:
            del self._sending[number]
            lives = self.channels.get(number)
            if lives and lives[-1].usable:
                assert isinstance(content.method, m.BasicPublish)
                self.oracle.published(self, lives[-1], content.method, content.properties, content.body)

    def _sent_method(self, number: int, method: Method) -> None:
        lives = self.channels.get(number)
        if isinstance(method, m.ConnectionClose):
            self.told_to_close = True
        if isinstance(method, m.ChannelOpen) and number:
            self._sent_open(number)
        elif lives and isinstance(method, m.ChannelCloseOk):
            if lives[-1].closed:
                lives[-1].left = True
            else:
                lives[-1].unsure = True
        elif lives and not lives[-1].left:
            self.oracle.sent(self, lives[-1], method)
            if isinstance(method, m.ChannelClose):
                self.oracle.channel_left(self, lives[-1])
                lives[-1].left = True

    def _sent_open(self, number: int) -> None:
        lives = self.channels.setdefault(number, [])
        if not lives or lives[-1].left:
            lives.append(Channel(number))
        else:
            lives[-1].unsure = True

    # -- heard -----------------------------------------------------------------------------------------------

    def heard(self, kind: int, number: int, payload: bytes) -> None:
        lives = self.channels.get(number, [])
        if kind == FRAME_METHOD:
            method = decode(payload)
            if isinstance(method, m.BasicDeliver | m.BasicGetOk | m.BasicReturn):
                self._hearing[number] = Content(method)
            elif isinstance(method, m.ConnectionClose):
                self.told_to_close = True
                self.oracle.closed(self, method)
            elif isinstance(method, m.ChannelOpenOk) and lives:
                if lives[0].opened and len(lives) > 1:
                    lives.pop(0)
                lives[0].opened = True
            elif isinstance(method, m.ChannelClose) and lives:
                self.oracle.closed(self, method)
                lives[0].closed = True
                lives[0].out.clear()
            elif lives:
                self.oracle.told(self, lives[0], method)
        elif kind == FRAME_HEADER:
            self._hearing[number].size = int.from_bytes(payload[4:12], "big")
            self._heard_all(number)
        elif kind == FRAME_BODY:
            self._hearing[number].body += payload
            self._heard_all(number)

    def _heard_all(self, number: int) -> None:
        content = self._hearing[number]
        if len(content.body) >= content.size:
            del self._hearing[number]
            assert len(content.body) == content.size, "a message is longer than its header says"
            lives = self.channels.get(number)
            if lives:
                self.oracle.message(self, lives[0], content.method, content.body)
