"""Kvitto's class `log`: a queue read by offset without consuming it, and settled by range (docs/protocol-extensions.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.queues import waiting
from kvitto.broker.queues.hold import hold as hold_below
from kvitto.broker.queues.hold import join_group, leave_group, release
from kvitto.broker.queues.reader import RangeReader
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.protocol.delivery import RangeConsumer
from kvitto.wire.methods import (
    LogAttach,
    LogAttachOk,
    LogCount,
    LogCountOk,
    LogDetach,
    LogDetachOk,
    LogHold,
    LogHoldOk,
    LogInspect,
    LogInspectOk,
    LogRead,
    LogReadOk,
    LogSettle,
    LogSettleOk,
    Method,
)

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection


def _queue(conn: Connection, name: str) -> Queue:
    conn.user.authorise(conn.vhost.name, "read", "queue", name)
    return conn.vhost.queue(name, conn)


def _position(queue: Queue) -> tuple[str, int, int, int]:
    """(incarnation, first, next, settled): first unsettled offset, end of what is durable, offset below which all is settled.

    No offset from `announced_end` on is sent: after a crash it may belong to another message, which a reader would settle unread.
    """
    first = waiting.lowest(queue)
    return queue.log.queue_id, first, queue.log.announced_end, first


def _work_queue(conn: Connection, name: str, why: str) -> WorkQueue:
    """Raises ChannelError 406 if it is a stream, with the reason."""
    queue = _queue(conn, name)
    if not isinstance(queue, WorkQueue):
        text = f"queue '{queue.name}' in vhost '{queue.vhost.name}' is a stream: {why}"
        raise ChannelError(PRECONDITION_FAILED, text)
    return queue


def attach(conn: Connection, chan: Channel, m: LogAttach) -> None:
    queue = _work_queue(conn, m.queue, "every reader has its own position, attach to nothing")
    thing = f"queue '{queue.name}' in vhost '{conn.vhost.name}'"
    if not m.group:
        raise ChannelError(PRECONDITION_FAILED, f"a group needs a name to read {thing} by range")

    def may_attach() -> None:
        if queue.consumers or queue.unacked:
            text = f"{thing} has {len(queue.consumers)} consumers and {queue.unacked} unacked messages: end them to read it by range"
            raise ChannelError(ACCESS_REFUSED, text)
        if queue.group is not None and queue.group != m.group:
            raise ChannelError(ACCESS_REFUSED, f"{thing} is read by range by group '{queue.group}'")
        if queue.fault is not None:
            raise walls.out_of_service(queue)
        if queue.deleted:
            raise ChannelError(NOT_FOUND, f"no {thing}")

    def steps() -> Iterator[None]:
        may_attach()
        for _ in queue.retries.end():
            yield
            may_attach()  # others may have come meanwhile
            if chan.closing:  # nobody would ever leave the group
                return
        join_group(queue, m.group, conn)
        conn.groups[queue] = None

    conn.perform(steps(), lambda: conn.send(chan.number, LogAttachOk(*_position(queue))), channel=chan, method=m)


def detach(conn: Connection, chan: Channel, m: LogDetach) -> None:
    queue = _queue(conn, m.queue)
    steps: Iterator[None] = iter(())
    if queue.group == m.group:
        leave_group(queue, conn)
        if not queue.group_holders:
            steps = release(queue)
    conn.perform(steps, lambda: conn.send(chan.number, LogDetachOk()), channel=chan, method=m)


def inspect(conn: Connection, chan: Channel, m: LogInspect) -> None:
    conn.send(chan.number, LogInspectOk(*_position(_queue(conn, m.queue))))


def read(conn: Connection, chan: Channel, m: LogRead) -> None:
    queue = _queue(conn, m.queue)
    if queue.group is None and queue.consumers and not queue.stream:
        raise ChannelError(ACCESS_REFUSED, f"queue '{queue.name}' in vhost '{conn.vhost.name}' has consumers")
    if chan.reading:
        raise ChannelError(
            PRECONDITION_FAILED, "a channel reads one range at a time: wait for read-ok, or open another"
        )
    consumer = RangeConsumer(chan, queue, m.consumer_tag)
    chan.reading = True

    def done(reader: RangeReader) -> None:
        chan.reading = False
        if queue.fault is not None:
            raise walls.out_of_service(queue)
        conn.send(chan.number, LogReadOk(m.consumer_tag, reader.position, reader.count))

    reader = RangeReader(queue, consumer, m.start, m.end, done, conn)
    conn.broker.readers.add(chan, reader)


def settle(conn: Connection, chan: Channel, m: LogSettle) -> None:
    queue = _work_queue(conn, m.queue, "its messages leave by retention, nothing in it is settled")
    _check_attached(queue, m.group)
    _check_incarnation(queue, m.incarnation)

    def settled() -> None:
        conn.send(chan.number, LogSettleOk(_position(queue)[3]))

    def settle_until(end: int) -> None:
        walls.within(queue, queue.settle_until, end)

    steps = waiting.in_pieces(queue, min(m.end, queue.next), settle_until)
    conn.perform(steps, settled, channel=chan, method=m)


def hold(conn: Connection, chan: Channel, m: LogHold) -> None:
    queue = _work_queue(conn, m.queue, "its messages leave by retention, nothing in it is held")
    _check_attached(queue, m.group)
    _check_incarnation(queue, m.incarnation)

    def answer() -> None:
        conn.send(chan.number, LogHoldOk(*_counted(queue, m.start, m.end)))

    conn.perform(hold_below(queue, m.end, conn), answer, channel=chan, method=m)


def count(conn: Connection, chan: Channel, m: LogCount) -> None:
    queue = _queue(conn, m.queue)
    _check_incarnation(queue, m.incarnation)
    conn.spend(waiting.cost(queue))
    conn.send(chan.number, LogCountOk(*_counted(queue, m.start, m.end)))


def _counted(queue: Queue, start: int, end: int) -> tuple[int, int, int]:
    """(first, end, count): the lowest offset that waits, `end` moved up to the next one that does, and how many do in [start, end)."""
    end = min(end, queue.log.announced_end)
    return waiting.lowest(queue), waiting.next_from(queue, end), waiting.count(queue, start, end)


def _check_attached(queue: Queue, group: str) -> None:
    if queue.group != group:
        thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
        raise ChannelError(ACCESS_REFUSED, f"group '{group}' is not attached to {thing}")


def _check_incarnation(queue: Queue, incarnation: str) -> None:
    if incarnation and incarnation != queue.log.queue_id:
        thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
        text = f"{thing} was deleted and declared again: incarnation is {queue.log.queue_id}"
        raise ChannelError(PRECONDITION_FAILED, text)


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    LogAttach: attach,
    LogDetach: detach,
    LogInspect: inspect,
    LogRead: read,
    LogSettle: settle,
    LogHold: hold,
    LogCount: count,
}
