"""A channel with the interface of py-amqp's, which kombu and Celery use, on the compiled codec.

As with py-amqp, a channel that the server closes is opened again under the same number, and the error is raised to
whoever uses it next or drains events.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from queue import Queue
from typing import TYPE_CHECKING, Any, TypeVar

from amqp.exceptions import (
    ChannelError,
    ConsumerCancelled,
    FrameSyntaxError,
    MessageNacked,
    RecoverableConnectionError,
    UnexpectedFrame,
    error_for_code,
)
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base

from kvitto.base.errors import ConnectionError_
from kvitto.client.codec import CONFIRM, CONTENT, Sink
from kvitto.client.columns import Window
from kvitto.client.fields import read_fields, write_fields
from kvitto.kombu.message import NAMES, Prepared, Received
from kvitto.wire import methods as m
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from kvitto.kombu.connection import Connection

M = TypeVar("M", bound=m.Method)
ACK, REJECT, NACK = 80, 90, 120
MULTIPLE, REQUEUE = 1, 2
logger = logging.getLogger("kvitto.kombu")


class Channel(base.StdChannel):
    """One AMQP channel. `Connection.channel()` makes it."""

    Message = Received

    def __init__(self, connection: Connection, channel_id: int) -> None:
        self.connection: Connection | None = connection
        self.channel_id = channel_id
        self.is_open = False
        self.is_closing = False
        self.active = True
        """False while the server wants no publishes (channel.flow)."""
        self.callbacks: dict[str, Callable[[Received], object] | None] = {}
        self.cancel_callbacks: dict[str, Callable[[str], object]] = {}
        self.events: defaultdict[str, set[Callable[..., object]]] = defaultdict(set)
        """Callbacks by event: basic_return, basic_ack, basic_nack."""
        self.no_ack_consumers: set[str] = set()
        self.returned_messages: Queue[Received] = Queue()
        self.sink: Sink | None = None
        self._window: Window | None = None
        self._nacked: list[int] = []
        self._replies: list[tuple[m.Method, Received | None]] = []
        self._got: Received | None = None
        """The message that came with the last answer."""
        self._error: Exception | None = None
        self._closed_by_server = False
        if connection.confirm_publish:
            self.basic_publish = self.basic_publish_confirm  # type: ignore[method-assign]

    # --- opening and closing

    def open(self) -> None:
        if not self.is_open:
            self._connected().register(self)
            self._window = None
            self.call(m.ChannelOpen(), m.ChannelOpenOk)
            self.is_open = True

    def close(self, reply_code: int = 0, reply_text: str = "", method_sig: tuple[int, int] = (0, 0)) -> None:
        """Close the channel; its unacknowledged messages return to their queues."""
        connection = self.connection
        try:
            if connection is None or connection.channels is None or not self.is_open:
                return
            self.is_closing = True
            self._error = None
            self.call(m.ChannelClose(reply_code, reply_text, *method_sig), m.ChannelCloseOk)
        finally:
            self.is_closing = False
            self.collect()

    def collect(self) -> None:
        """Release what the channel holds, without a word to the server."""
        self.is_open = False
        connection, self.connection = self.connection, None
        if connection is not None and connection.channels is not None:
            connection.channels.pop(self.channel_id, None)
        self.callbacks.clear()
        self.cancel_callbacks.clear()
        self.events.clear()
        self.no_ack_consumers.clear()

    def flow(self, active: bool) -> None:
        self.call(m.ChannelFlow(active), m.ChannelFlowOk)

    # --- exchanges and queues

    def exchange_declare(
        self,
        exchange: str,
        type: str,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        request = m.ExchangeDeclare(exchange, type, passive, durable, auto_delete, False, nowait, arguments)
        self.call(request, *_unless(nowait, m.ExchangeDeclareOk))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self.call(m.ExchangeDelete(exchange, if_unused, nowait), *_unless(nowait, m.ExchangeDeleteOk))

    def exchange_bind(
        self,
        destination: str,
        source: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        request = m.ExchangeBind(destination, source, routing_key, nowait, arguments)
        self.call(request, *_unless(nowait, m.ExchangeBindOk))

    def exchange_unbind(
        self,
        destination: str,
        source: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        request = m.ExchangeUnbind(destination, source, routing_key, nowait, arguments)
        self.call(request, *_unless(nowait, m.ExchangeUnbindOk))

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Table | None = None,
    ) -> queue_declare_ok_t | None:
        """Return the queue's name, and its numbers of messages and consumers; None with `nowait`."""
        request = m.QueueDeclare(queue, passive, durable, exclusive, auto_delete, nowait, arguments)
        reply = self.call(request, *_unless(nowait, m.QueueDeclareOk))
        return queue_declare_ok_t(reply.queue, reply.message_count, reply.consumer_count) if reply is not None else None

    def queue_bind(
        self,
        queue: str,
        exchange: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        request = m.QueueBind(queue, exchange, routing_key, nowait, arguments)
        self.call(request, *_unless(nowait, m.QueueBindOk))

    def queue_unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        nowait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.call(m.QueueUnbind(queue, exchange, routing_key, arguments), m.QueueUnbindOk)

    def queue_purge(self, queue: str = "", nowait: bool = False) -> int | None:
        """Purge the queue. Return the number of messages dropped; None with `nowait`."""
        reply = self.call(m.QueuePurge(queue, nowait), *_unless(nowait, m.QueuePurgeOk))
        return reply.message_count if reply is not None else None

    def queue_delete(
        self, queue: str = "", if_unused: bool = False, if_empty: bool = False, nowait: bool = False
    ) -> int | None:
        """Delete the queue. Return the number of messages dropped with it; None with `nowait`."""
        reply = self.call(m.QueueDelete(queue, if_unused, if_empty, nowait), *_unless(nowait, m.QueueDeleteOk))
        return reply.message_count if reply is not None else None

    # --- publishing

    def prepare_message(
        self,
        body: str | bytes,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Table | None = None,
        properties: dict[str, Any] | None = None,
    ) -> Prepared:
        """Return a message for `basic_publish`."""
        prepared = dict(properties) if properties else {}
        prepared["priority"] = priority
        prepared["content_type"] = content_type
        prepared["content_encoding"] = content_encoding
        prepared["application_headers"] = headers
        return Prepared(body, prepared)

    def prepare_queue_arguments(self, arguments: Table, **options: Any) -> Table:
        prepared: Table = base.to_rabbitmq_queue_arguments(arguments, **options)
        return prepared

    def basic_publish(
        self,
        msg: Any,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Send a message (of `prepare_message`, or an amqp.Message). What the server has said before is handled first:
        an error of this channel is raised here, and `on_blocked` is called. Raise RecoverableConnectionError if the
        broker does not take the message within `timeout` seconds."""
        self._publish(msg, exchange, routing_key, mandatory, immediate, timeout)

    def basic_publish_confirm(
        self,
        msg: Any,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Send a message and wait until it is confirmed. Raise MessageNacked, or socket.timeout if the confirm takes
        longer than `confirm_timeout` or `timeout` seconds."""
        if self._window is None:
            self.confirm_select()
        window = self._window
        assert window is not None
        self._publish(msg, exchange, routing_key, mandatory, immediate, timeout)
        tag = window.next - 1
        self._wait(lambda: window.low > tag or tag not in window.unconfirmed(), confirm_timeout or timeout)
        self._check()
        if tag in self._nacked:
            self._nacked.clear()
            raise MessageNacked

    def _publish(
        self, msg: Any, exchange: str, routing_key: str, mandatory: bool, immediate: bool, timeout: float | None
    ) -> None:
        connection = self._connected()
        if connection.read():
            connection.announce()
        self._check()
        body, properties = msg.body, msg.properties
        if isinstance(body, str):
            if properties.get("content_encoding") is None:
                properties["content_encoding"] = "utf-8"
            body = body.encode(properties["content_encoding"])
        name, key = exchange.encode("utf-8", "surrogateescape"), routing_key.encode("utf-8", "surrogateescape")
        flags = (1 if mandatory else 0) | (2 if immediate else 0)
        encoded = write_fields(properties, NAMES)
        connection.publish(self.channel_id, name, key, flags, encoded, bytes(body), timeout)
        if self._window is not None:
            self._window.sent(1)

    def confirm_select(self, nowait: bool = False) -> None:
        """From now on the server confirms each publish; `events` has the callbacks (tag, multiple)."""
        assert self.sink is not None
        if self._window is None:
            self._window = self.sink.window = Window()
            self._nacked = self._window.refused = []
            self.sink.record_confirms = True
        self.call(m.ConfirmSelect(nowait), *_unless(nowait, m.ConfirmSelectOk))

    # --- consuming

    def basic_qos(self, prefetch_size: int, prefetch_count: int, a_global: bool) -> None:
        self.call(m.BasicQos(prefetch_size, prefetch_count, a_global), m.BasicQosOk)

    def basic_consume(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        nowait: bool = False,
        callback: Callable[[Received], object] | None = None,
        arguments: Table | None = None,
        on_cancel: Callable[[str], object] | None = None,
    ) -> str:
        """Start a consumer and return its tag. `drain_events` calls `callback` with its messages, and `on_cancel` if the
        server cancels it."""
        if nowait and not consumer_tag:
            raise ValueError("Consumer tag must be specified when nowait is True")
        request = m.BasicConsume(queue, consumer_tag, no_local, no_ack, exclusive, nowait, arguments)
        reply = self.call(request, *_unless(nowait, m.BasicConsumeOk))
        tag = reply.consumer_tag if reply is not None else consumer_tag
        self.callbacks[tag] = callback
        if on_cancel is not None:
            self.cancel_callbacks[tag] = on_cancel
        if no_ack:
            self.no_ack_consumers.add(tag)
        return tag

    def basic_cancel(self, consumer_tag: str, nowait: bool = False) -> None:
        """End a consumer. Its messages that have been received are handed to its callback before."""
        connection = self.connection
        if connection is not None:
            self.call(m.BasicCancel(consumer_tag, nowait), *_unless(nowait, m.BasicCancelOk))
            for event in connection.take_waiting(self.channel_id, consumer_tag):
                self.deliver(event)
            self._forget(consumer_tag)

    def basic_get(self, queue: str = "", no_ack: bool = False) -> Received | None:
        """Return one message, or None if the queue is empty."""
        self.call(m.BasicGet(queue, no_ack), m.BasicGetOk, m.BasicGetEmpty)
        return self._got

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        self._settle(ACK, delivery_tag, MULTIPLE if multiple else 0)

    def basic_nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        self._settle(NACK, delivery_tag, (MULTIPLE if multiple else 0) | (REQUEUE if requeue else 0))

    def basic_reject(self, delivery_tag: int, requeue: bool) -> None:
        self._settle(REJECT, delivery_tag, 1 if requeue else 0)

    def basic_recover(self, requeue: bool = False) -> None:
        """Have all unacknowledged messages of this channel delivered again. This does not wait for the answer."""
        self._connected().send(m.BasicRecover(requeue), self.channel_id)

    def basic_recover_async(self, requeue: bool = False) -> None:
        self._connected().send(m.BasicRecoverAsync(requeue), self.channel_id)

    def message_to_python(self, raw_message: Received) -> Received:
        """Return the message as kombu wants it, which it is already."""
        return raw_message

    def _settle(self, method: int, tag: int, flags: int) -> None:
        connection = self._connected()
        connection.settle(self.channel_id, method, tag, flags)

    # --- transactions

    def tx_select(self) -> None:
        self.call(m.TxSelect(), m.TxSelectOk)

    def tx_commit(self) -> None:
        self.call(m.TxCommit(), m.TxCommitOk)

    def tx_rollback(self) -> None:
        self.call(m.TxRollback(), m.TxRollbackOk)

    # --- what the server sends

    def deliver(self, event: tuple[Any, ...]) -> None:
        """Hand a delivery to its consumer."""
        _, _, tag, number, redelivered, exchange, routing_key, raw, body = event
        callback = self.callbacks.get(tag)
        if callback is None:
            text = "Delivery %r of consumer %r (exchange %r, routing key %r) is put back: the consumer has no callback"
            logger.warning(text, number, tag, exchange, routing_key)
            self.basic_reject(number, requeue=True)
            return
        info = {
            "consumer_tag": tag,
            "delivery_tag": number,
            "redelivered": redelivered,
            "exchange": exchange,
            "routing_key": routing_key,
        }
        callback(Received(self, info, self._properties(raw), body))

    def take(self, event: tuple[Any, ...]) -> None:
        """Handle one event other than a delivery."""
        if event[1] == CONFIRM:
            for callback in tuple(self.events["basic_ack" if event[4] else "basic_nack"]):
                callback(event[2], event[3])
            return
        method = m.decode(event[2])
        if event[1] == CONTENT:
            self._take_content(method, event[3], event[4])
        elif isinstance(method, m.ChannelClose):
            self._connected().send(m.ChannelCloseOk(), self.channel_id)
            if not self.is_closing:
                cause = (method.class_id, method.method_id)
                self._closed_by_server = True
                self._failed(error_for_code(method.reply_code, method.reply_text, cause, ChannelError))
        elif isinstance(method, m.BasicCancel):
            on_cancel = self._forget(method.consumer_tag)
            if on_cancel is not None:
                on_cancel(method.consumer_tag)
            else:
                self._failed(ConsumerCancelled(method.consumer_tag, (60, 30)))
        elif isinstance(method, m.ChannelFlow):
            self.active = method.active
            self._connected().send(m.ChannelFlowOk(method.active), self.channel_id)
        elif not isinstance(method, m.BasicRecoverOk):
            self._replies.append((method, None))

    def _take_content(self, method: m.Method, raw: bytes, body: bytes) -> None:
        properties = self._properties(raw)
        if isinstance(method, m.BasicReturn):
            error = error_for_code(method.reply_code, method.reply_text, (60, 50), ChannelError)
            handlers = tuple(self.events.get("basic_return") or ())
            message = Received(self, {}, properties, body)
            for handler in handlers:
                handler(error, method.exchange, method.routing_key, message)
            if not handlers:
                self._failed(error)
        elif isinstance(method, m.BasicGetOk):
            info = {
                "delivery_tag": method.delivery_tag,
                "redelivered": method.redelivered,
                "exchange": method.exchange,
                "routing_key": method.routing_key,
                "message_count": method.message_count,
            }
            self._replies.append((method, Received(self, info, properties, body)))

    def _properties(self, raw: bytes) -> dict[str, Any]:
        try:
            return read_fields(raw, NAMES)
        except ConnectionError_ as error:
            raise self._connected().fail(FrameSyntaxError(error.text)) from None

    def _forget(self, consumer_tag: str) -> Callable[[str], object] | None:
        self.no_ack_consumers.discard(consumer_tag)
        self.callbacks.pop(consumer_tag, None)
        return self.cancel_callbacks.pop(consumer_tag, None)

    def _failed(self, error: Exception) -> None:
        self._error = error
        self._connected().failed(self)

    def raise_error(self) -> None:
        """Raise the error that the channel has, after opening it again if the server has closed it."""
        error, self._error = self._error, None
        if error is None:
            return
        if self._closed_by_server:
            self._closed_by_server = self.is_open = False
            self._replies.clear()
            self.open()
        raise error

    # --- internals

    def call(self, request: m.Method, *answers: type[M]) -> Any:
        """Send a method and return its answer; without `answers` do not wait and return None."""
        self._check()
        connection = self._connected()
        self._replies.clear()
        connection.send(request, self.channel_id)
        if not answers:
            return None
        self._wait(lambda: bool(self._replies), None)
        if not self._replies:
            self._check()
        reply, self._got = self._replies.pop(0)
        if not isinstance(reply, answers):
            raise UnexpectedFrame(f"expected {answers[0].NAME}, the server sent {reply.NAME}")
        return reply

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until the condition holds or the channel has an error."""
        self._connected().wait_until(lambda: self._error is not None or condition(), timeout_s)

    def _check(self) -> None:
        if self._error is not None:
            self.raise_error()

    def _connected(self) -> Connection:
        if self.connection is None:
            raise RecoverableConnectionError("connection already closed")
        return self.connection


def _unless(nowait: bool, answer: type[M]) -> tuple[type[M], ...]:
    return () if nowait else (answer,)
