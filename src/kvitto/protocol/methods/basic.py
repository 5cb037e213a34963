"""basic.* but for publishes and acks, which the scan handles in place."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelError,
    ConnectionError_,
)
from kvitto.broker import walls
from kvitto.broker.administration import inert
from kvitto.broker.administration.admission import DIRECT_REPLY_TO
from kvitto.broker.changes import Unanswered
from kvitto.broker.jobs import nothing
from kvitto.broker.queues import filters
from kvitto.broker.queues.consumer import ACK, FAILED, REJECT, RETRY
from kvitto.broker.queues.hold import release
from kvitto.broker.queues.stream import Stream
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.protocol.channel import MORE, UNKNOWN
from kvitto.protocol.delivery import ChannelConsumer, GetConsumer, OffsetConsumer, StreamConsumer
from kvitto.protocol.methods.queue import named
from kvitto.protocol.states import RUNNING
from kvitto.wire.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    Method,
)

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.queue import Queue
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection


PY_AMQP = "py-amqp"
"""The library of kombu. With brokers that it does not know kombu expects the specification's basic.qos, which changes running consumers:
Celery raises the limit for each task with a countdown, which it holds unacked until then, and would stop without it."""


def qos(conn: Connection, chan: Channel, m: BasicQos) -> None:
    if m.prefetch_size:
        raise ConnectionError_(NOT_IMPLEMENTED, f"prefetch_size!=0 ({m.prefetch_size})")
    if m.global_:
        chan.limit_all(m.prefetch_count)
    else:
        chan.prefetch = m.prefetch_count
        if conn.client.get("product") == PY_AMQP:
            for consumer in chan.consumers.values():
                if isinstance(consumer, ChannelConsumer):
                    consumer.prefetch = m.prefetch_count
                    consumer.queue.resume(consumer)
    conn.send(chan.number, BasicQosOk())


def consume(conn: Connection, chan: Channel, m: BasicConsume) -> None:
    tag = m.consumer_tag or "amq.ctag-" + secrets.token_urlsafe(16)
    if tag in chan.consumers or tag == chan.reply_tag:
        raise ConnectionError_(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if m.queue == DIRECT_REPLY_TO:
        _consume_replies(conn, chan, m, tag)
        return
    name = named(chan, m.queue)
    conn.user.authorise(conn.vhost.name, "read", "queue", name)
    queue = conn.vhost.queue(name, conn)
    _check_consumers(conn, queue)
    if not queue.stream:
        _check_exclusive(conn, queue, m.exclusive)
    _check_arguments(conn, queue, m)
    consumer = _stream_consumer(chan, queue, m, tag) if isinstance(queue, Stream) else _consumer(chan, queue, m, tag)
    chan.consumers[tag] = consumer
    conn.consumers += 1
    if not m.no_wait:
        conn.send(chan.number, BasicConsumeOk(tag))
    walls.within(queue, queue.add_consumer, consumer)


def _check_arguments(conn: Connection, queue: Queue, m: BasicConsume) -> None:
    """Raises ChannelError 406 for what no consumer of this queue can ask for; the log names what is without effect."""
    if not m.arguments:
        return
    thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
    timeout_ms = m.arguments.get("x-consumer-timeout", -1)
    if "x-consumer-timeout" in m.arguments and (
        isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or timeout_ms < 0
    ):
        text = f"invalid arg 'x-consumer-timeout' for a consumer of {thing}: expected milliseconds, got {timeout_ms!r}"
        raise ChannelError(PRECONDITION_FAILED, text)
    of_streams = filters.ARGUMENTS if queue.stream else ()
    names = [name for name in m.arguments if name not in (*inert.HONOURED_OF_CONSUMERS, *of_streams)]
    conn.broker.notices.without_effect(f"a consumer of {thing}", names)


def _check_consumers(conn: Connection, queue: Queue) -> None:
    most = conn.broker.limits.consumers_max
    if len(queue.consumers) >= most:
        text = f"queue '{queue.name}' in vhost '{queue.vhost.name}' has {most} consumers, the limit"
        raise ChannelError(PRECONDITION_FAILED, text, limit="consumers")
    if conn.consumers >= most:
        raise ChannelError(PRECONDITION_FAILED, f"this connection has {most} consumers, the limit", limit="consumers")


def _consumer(chan: Channel, queue: Queue, m: BasicConsume, tag: str) -> ChannelConsumer:
    priority = m.arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ChannelError(PRECONDITION_FAILED, f"invalid arg 'x-priority': expected an integer, got {priority!r}")
    priority = max(-(1 << 31), min(priority, (1 << 31) - 1))
    if m.arguments.get("x-offset-header", False) is not False:
        assert isinstance(queue, WorkQueue)
        return _offset_consumer(chan, queue, m, tag, priority)
    return ChannelConsumer(chan, queue, tag, m.no_ack, m.exclusive, priority, m.arguments)


def _offset_consumer(chan: Channel, queue: WorkQueue, m: BasicConsume, tag: str, priority: int) -> OffsetConsumer:
    asked = m.arguments["x-offset-header"]
    why = ""
    if asked is not True:
        why = f"expected a boolean, got {asked!r}"
    elif not queue.log.durable:
        why = (
            f"queue '{queue.name}' in vhost '{queue.vhost.name}' is not durable, or exclusive: its offsets do not last"
        )
    elif m.no_ack:
        why = "it needs manual acks"
    if why:
        raise ChannelError(PRECONDITION_FAILED, f"invalid arg 'x-offset-header': {why}")
    return OffsetConsumer(chan, queue, tag, m.exclusive, priority, m.arguments)


def _stream_consumer(chan: Channel, queue: Stream, m: BasicConsume, tag: str) -> StreamConsumer:
    """Make a stream's consumer after RabbitMQ's checks. `exclusive` has no effect."""
    thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
    if "x-priority" in m.arguments:
        raise ChannelError(PRECONDITION_FAILED, f"invalid arg 'x-priority' for {thing}: a stream has no priorities")
    if not chan.prefetch:
        raise ChannelError(PRECONDITION_FAILED, f"consumer prefetch count is not set for '{thing}'")
    if m.no_ack:
        raise ConnectionError_(NOT_IMPLEMENTED, f"automatic acknowledgement not supported by stream queues {thing}")
    if chan.prefetch_all:
        raise ConnectionError_(NOT_IMPLEMENTED, f"{thing} does not support global qos")
    progress = walls.within(queue, queue.start_reading, tag, bool(m.consumer_tag), m.arguments)
    consumer = StreamConsumer(chan, queue, tag, m.arguments)
    consumer.progress = progress
    return consumer


def _check_exclusive(conn: Connection, queue: Queue, exclusive: bool) -> None:
    _check_group(conn.broker, queue)
    thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
    # an exclusive consumer must be the only one, while with a single active consumer others wait for its end
    if any(c.exclusive for c in queue.consumers[:1]) or (exclusive and (queue.consumers or queue.single)):
        raise ChannelError(ACCESS_REFUSED, f"{thing} in exclusive use")


def _check_group(broker: Broker, queue: Queue) -> None:
    """A queue that is read by range has no other consumers. A consumer that comes afterwards gets what was held, too."""
    if queue.group is not None:
        thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
        raise ChannelError(ACCESS_REFUSED, f"{thing} is read by range by group '{queue.group}'")
    if queue.hold is not None:
        with Unanswered(broker):  # deliveries do not wait for the definition, so no answer may
            broker.jobs.start(release(queue), owner=queue)


def _consume_replies(conn: Connection, chan: Channel, m: BasicConsume, tag: str) -> None:
    if not m.no_ack:
        raise ChannelError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if chan.reply_tag is not None:
        raise ChannelError(PRECONDITION_FAILED, "reply consumer already set")
    chan.reply_tag = tag
    if not m.no_wait:
        conn.send(chan.number, BasicConsumeOk(tag))


def cancel(conn: Connection, chan: Channel, m: BasicCancel) -> None:
    """An unknown tag is fine (A14)."""
    consumer = chan.forget_consumer(m.consumer_tag)
    if m.consumer_tag == chan.reply_tag:
        chan.reply_tag = None
        conn.hub.replies.forget(chan)
    if not m.no_wait:
        conn.send(chan.number, BasicCancelOk(m.consumer_tag))
    if consumer is not None:
        consumer.active = False
        consumer.waits_no_more()
        walls.within(consumer.queue, consumer.queue.remove_consumer, consumer)
        if not consumer.unacked and not consumer.no_ack:
            chan.free_slot(consumer.slot)  # type: ignore[attr-defined]
        consumer.queue.mark_dirty()
        conn.vhost.consumer_left(consumer.queue)


def get(conn: Connection, chan: Channel, m: BasicGet) -> None:
    name = named(chan, m.queue)
    conn.user.authorise(conn.vhost.name, "read", "queue", name)
    queue = conn.vhost.queue(name, conn)
    _check_group(conn.broker, queue)
    if not m.no_ack and chan.unacked >= chan.unacked_max:
        text = f"this channel has {chan.unacked} unacked messages, the limit is {chan.unacked_max}"
        raise ChannelError(PRECONDITION_FAILED, text, limit="unacked")
    getter = _getter(conn, chan, queue, m.no_ack)
    conn.perform(_get(conn, chan, queue, getter), channel=chan, method=m)


def _getter(conn: Connection, chan: Channel, queue: Queue, no_ack: bool) -> GetConsumer:
    """Return the channel's GetConsumer for a queue. One of them holds all unacked messages that basic.get has taken from the queue since
    a policy has changed its timeout.
    """
    if no_ack:
        return GetConsumer(chan, queue, no_ack, conn.wants_offsets)
    getter = chan.getters.get(queue)
    if getter is None or getter.timeout_ms != max(queue.consumer_timeout_ms, 0):
        getter = chan.getters[queue] = GetConsumer(chan, queue, no_ack, conn.wants_offsets)
    return getter


def _get(conn: Connection, chan: Channel, queue: Queue, getter: GetConsumer) -> Iterator[None]:
    """Answer basic.get. If very many messages in front have expired, they leave over several turns, and the answer waits."""
    while not chan.closing and conn.state == RUNNING:
        if queue.fault is not None:
            raise walls.out_of_service(queue)
        if not queue.deleted and walls.within(queue, queue.get, getter):
            if getter.no_ack:
                queue.gets_auto += 1
                chan.gets_auto += 1
            else:
                queue.gets += 1
                chan.gets += 1
            return
        if queue.deleted or not (queue.ready or queue.returning):
            queue.gets_empty += 1
            chan.gets_empty += 1
            conn.send(chan.number, BasicGetEmpty())
            if getter.slot and not getter.unacked:
                chan.free_slot(getter.slot)
            return
        yield


def ack(conn: Connection, chan: Channel, m: BasicAck) -> None:
    _settle(conn, chan, m, m.multiple, ACK)


def nack(conn: Connection, chan: Channel, m: BasicNack) -> None:
    _settle(conn, chan, m, m.multiple, RETRY if m.requeue else REJECT)


def reject(conn: Connection, chan: Channel, m: BasicReject) -> None:
    _settle(conn, chan, m, False, FAILED if m.requeue else REJECT)


def _settle(conn: Connection, chan: Channel, m: BasicAck | BasicNack | BasicReject, multiple: bool, kind: int) -> None:
    settler = chan if chan.tx is None else chan.tx
    found = settler.settle_tags(m.delivery_tag, multiple, kind)
    if found == UNKNOWN:
        raise ChannelError(PRECONDITION_FAILED, f"unknown delivery tag {m.delivery_tag}")
    if found == MORE:
        conn.perform(settler.settle_rest(kind), channel=chan, method=m)


def recover(conn: Connection, chan: Channel, m: BasicRecover) -> None:
    _recover(conn, chan, m.requeue, lambda: conn.send(chan.number, BasicRecoverOk()))


def recover_async(conn: Connection, chan: Channel, m: BasicRecoverAsync) -> None:
    _recover(conn, chan, m.requeue, nothing)


def _recover(conn: Connection, chan: Channel, requeue: bool, done: Callable[[], None]) -> None:
    if not requeue:
        raise ConnectionError_(NOT_IMPLEMENTED, "requeue=false")
    conn.perform(chan.requeue_all(), done, channel=chan)


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    BasicQos: qos,
    BasicConsume: consume,
    BasicCancel: cancel,
    BasicCancelOk: lambda conn, chan, m: None,
    BasicGet: get,
    BasicAck: ack,
    BasicNack: nack,
    BasicReject: reject,
    BasicRecover: recover,
    BasicRecoverAsync: recover_async,
}
