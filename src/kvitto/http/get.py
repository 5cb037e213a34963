"""Getting messages over HTTP: shows them, or takes them out of their queue. It is made for people and probes, not for traffic."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ACCESS_REFUSED, ChannelError
from kvitto.broker import walls
from kvitto.broker.queues.consumer import Consumer
from kvitto.broker.queues.look import Look, looks
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.http import fields
from kvitto.http.request import bad_request, encode, plain
from kvitto.http.slices import Slices
from kvitto.store.batch import Stored
from kvitto.store.lease import lease_body
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.properties import FIELDS, Properties

if TYPE_CHECKING:
    from kvitto.store.batch import Batch, Body

COUNT_MAX = 10_000
BODIES_MAX = 8 << 20
"""The maximum number of bytes of bodies in one answer, because all are in memory until they are sent. The first message
may be larger."""
BODY_MAX = 1 << 40
BACK_S = 0.002
"""The seconds between two looks at a queue that delivers nothing for some turns."""
PIECE_BYTES = 48 << 10
"""The bytes of a body that are rendered in one step; a multiple of 3, for base64."""

LOOK = "ack_requeue_true"
SETTLING = ("ack_requeue_false", "reject_requeue_false")
"""With these modes the message leaves the queue."""
ACK_MODES = (LOOK, "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
ENCODINGS = ("auto", "base64")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parameters of a request."""

    count: int
    mode: str
    encoding: str
    truncate: int

    @classmethod
    def of(cls, body: dict[str, Any]) -> Wanted:
        """Read the parameters. Raise Problem 400. `requeue` is an older parameter for the same as `ackmode`."""
        count = fields.number(body, "count", 0, COUNT_MAX, 1)
        default = LOOK if fields.flag(body, "requeue", True) else "ack_requeue_false"
        mode = fields.text(body, "ackmode", default)
        if mode not in ACK_MODES:
            raise bad_request(f"ackmode must be one of {', '.join(ACK_MODES)}")
        encoding = fields.text(body, "encoding", "auto")
        if encoding not in ENCODINGS:
            raise bad_request("encoding must be auto or base64")
        return cls(count, mode, encoding, fields.number(body, "truncate", 0, BODY_MAX, BODY_MAX))


@dataclass(frozen=True, slots=True)
class Got:
    message: Look
    body: memoryview
    left: int


async def get(slices: Slices, queue: Queue, wanted: Wanted) -> list[Got]:
    """Return the messages, settled as the request says. Raise ChannelError 403 for an exclusive consumer,
    ConnectionError_ 540 for a stream."""
    if queue.group is not None or any(c.exclusive for c in queue.consumers[:1]):
        text = f"queue '{queue.name}' in vhost '{queue.vhost.name}' in exclusive use"
        raise ChannelError(ACCESS_REFUSED, text)
    if wanted.mode == LOOK and isinstance(queue, WorkQueue):
        return await _look(slices, queue, wanted)
    return await _take(slices, queue, wanted)


async def _look(slices: Slices, queue: WorkQueue, wanted: Wanted) -> list[Got]:
    found: list[Got] = []
    size = 0
    seen = looks(queue, wanted.count)
    while (
        len(found) < wanted.count
        and size < BODIES_MAX
        and (message := walls.within(queue, next, seen, False)) is not False
    ):
        if isinstance(message, Look):
            body = await _held(slices, queue, message.offset, message.body)
            found.append(Got(message, body, max(queue.ready - len(found) - 1, 0)))
            size += len(body)
        await slices.rest()
    return found


async def _held(slices: Slices, queue: Queue, offset: int, body: Body) -> memoryview:
    """Return the body in memory. One that is only on disk is read slice by slice, even if its message leaves. Raises StoreError."""
    if isinstance(body, Stored):
        lease = lease_body(queue.log, offset)
        steps = body.take()
        try:
            while isinstance(body, Stored):
                try:
                    next(steps)
                    await slices.rest()
                except StopIteration as end:
                    body = end.value
        finally:
            if lease is not None:
                lease.end()
    return body.view() if isinstance(body, Buf) else memoryview(body)


class Taker(Consumer):
    """Keeps the message that `Queue.get` has delivered last."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue, "", False, False, 0, {})
        self.last: Look
        self.left = 0

    def credit(self) -> int:
        return 1

    def deliver(self, batch: Batch, i: int, n: int, redelivered: int) -> int:
        key, props, body, _ = batch.parts(i)
        self._take(Look(batch.first + i, key, props, body, bool(redelivered)))
        return 1

    def deliver_again(self, key: bytes, props: bytes, body: Body, offset: int) -> None:
        self._take(Look(offset, key, props, body, True))

    def _take(self, message: Look) -> None:
        self.last, self.left = message, max(self.queue.ready - 1, 0)


async def _take(slices: Slices, queue: Queue, wanted: Wanted) -> list[Got]:
    """Deliver the messages. Those that are to be requeued are requeued together at the end, since they would be
    delivered again otherwise."""
    taker, size, taken = Taker(queue), 0, list[Got]()
    back: list[tuple[int, int]] = []
    try:
        while len(taken) < wanted.count and size < BODIES_MAX and not queue.deleted:
            if not walls.within(queue, queue.get, taker):
                if not queue.returning:
                    queue.gets_empty += not taken
                    break
                await asyncio.sleep(BACK_S)  # what is on its way back, or is large, comes before all others
                continue
            message, left, offset = taker.last, taker.left, taker.last.offset
            back.append((offset, len(message.body)))
            taken.append(Got(message, await _held(slices, queue, offset, message.body), left))
            size += len(message.body)
            queue.gets += 1
            if wanted.mode in SETTLING:
                back.pop()
                queue.unacked_bytes -= len(message.body)
                walls.within(queue, queue.ack if wanted.mode == "ack_requeue_false" else queue.reject, offset, 1)
            await slices.rest()
    finally:
        if back:
            queue.broker.jobs.start(_requeue(queue, back), owner=queue)
    return taken


def _requeue(queue: Queue, back: list[tuple[int, int]]) -> Iterator[None]:
    for i, (offset, body_bytes) in enumerate(back):
        if i % 20 == 19:
            yield
        queue.unacked_bytes -= body_bytes
        queue.requeue(offset, 1, body_bytes)


# -- as JSON -------------------------------------------------------------------------------------------------


async def rendered(slices: Slices, got: list[Got], wanted: Wanted) -> AsyncIterator[bytes]:
    """Yield a JSON array."""
    before = b"["
    for one in got:
        body = one.body[: wanted.truncate]
        how = await _encoding(slices, body, wanted.encoding)
        yield before + encode(_head(one))[:-1] + b',"payload":"'
        async for piece in _payload(slices, body, how):
            yield piece
        yield b'","payload_encoding":' + encode(how) + b"}"
        before = b","
        await slices.rest()
    yield b"]" if got else b"[]"


def _head(got: Got) -> dict[str, Any]:
    message = got.message
    exchange, at = tables.read_shortstr(message.key, 0)
    properties = Properties.decode(message.props)
    given = ((name, getattr(properties, name)) for name, _ in FIELDS)
    return {
        "payload_bytes": len(got.body),
        "redelivered": message.redelivered,
        "exchange": exchange,
        "routing_key": tables.read_shortstr(message.key, at)[0],
        "message_count": got.left,
        "properties": {name: plain(value) for name, value in given if value is not None},
    }


async def _encoding(slices: Slices, body: memoryview, wanted: str) -> str:
    """Return the encoding of the body in the answer: string if that is wanted and the body is UTF-8, else base64."""
    if wanted != "auto":
        return "base64"
    try:
        async for _ in _texts(slices, body):
            pass
    except UnicodeDecodeError:
        return "base64"
    return "string"


async def _payload(slices: Slices, body: memoryview, encoding: str) -> AsyncIterator[bytes]:
    """Yield the text between the quotes of the JSON string for a body. No piece is kept: all of them may take six times its memory."""
    if encoding == "string":
        async for text in _texts(slices, body):
            yield json.dumps(text)[1:-1].encode("ascii")
        return
    for at in range(0, len(body), PIECE_BYTES):
        yield base64.b64encode(body[at : at + PIECE_BYTES])
        await slices.rest()


async def _texts(slices: Slices, body: memoryview) -> AsyncIterator[str]:
    """Yield the body as text, piece by piece. Raises UnicodeDecodeError if it is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body) or 1, PIECE_BYTES):
        yield decoder.decode(body[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(body))
        await slices.rest()
