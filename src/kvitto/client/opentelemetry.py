"""`OpenTelemetry`: an interceptor that traces publishes and the handling of messages. It needs `pip install
'kvitto[opentelemetry]'`, which is the API alone; the program configures the SDK and the propagator.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging with RabbitMQ (1.30).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ImportError as error:
    raise ImportError(
        "kvitto.client.opentelemetry needs opentelemetry-api: pip install 'kvitto[opentelemetry]'"
    ) from error

from kvitto.base.version import __version__
from kvitto.client.intercept import Interceptor
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from kvitto.client.aio.core import IncomingMessage
    from kvitto.client.aio.message import Message


class OpenTelemetry(Interceptor):
    """A span around each publish, whose context goes into the headers, and one around the handling of each message.

    The parent of the latter is the publisher's span; if the program has a span of its own at that point, that one is the
    parent, and the publisher's span a link. Headers with a context of the program stay as they are, and the publish has a
    link to it.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("kvitto.client", __version__, tracer_provider)

    @contextmanager
    def publish(self, message: Message) -> Iterator[None]:
        given = _context_in(message.headers)
        with self._span("publish", "send", SpanKind.PRODUCER, _of_publish(message), _links(given)):
            if given is None:
                propagate.inject(message.headers)
            yield

    @contextmanager
    def publish_many(self, exchange: str, routing_key: str) -> Iterator[Callable[[Message], object]]:
        count = 0

        def create(message: Message) -> None:
            nonlocal count
            count += 1
            if _context_in(message.headers) is None:
                with self._span("create", "create", SpanKind.PRODUCER, _of_publish(message), ()):
                    propagate.inject(message.headers)

        known: dict[str, AttributeValue] = {}
        if exchange or routing_key:
            known["messaging.destination.name"] = _destination(exchange, routing_key)
        with self._span("publish", "send", SpanKind.CLIENT, known, ()) as span:
            try:
                yield create
            finally:
                span.set_attribute("messaging.batch.message_count", count)

    @contextmanager
    def handle(self, message: IncomingMessage, queue: str) -> Iterator[None]:
        given = _context_in(message.headers)
        parent, links = None, _links(given)
        if given is not None and not trace.get_current_span().get_span_context().is_valid:
            parent, links = propagate.extract(message.headers, getter=_TEXTS), ()
        with self._span("process", "process", SpanKind.CONSUMER, _of_message(message, queue), links, parent):
            yield

    @contextmanager
    def _span(
        self,
        name: str,
        kind_of_operation: str,
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        links: tuple[Link, ...],
        parent: Context | None = None,
    ) -> Iterator[Span]:
        destination = attributes.get("messaging.destination.name")
        shown = f"{name} {destination}" if destination else name
        attributes = {
            "messaging.system": "rabbitmq",  # the convention's name for this protocol, whatever the broker
            "messaging.operation.name": name,
            "messaging.operation.type": kind_of_operation,
            **attributes,
        }
        with self._tracer.start_as_current_span(shown, parent, kind, attributes, links) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", _name_of(type(error)))
                raise


class _Texts(Getter[Table]):
    """Headers as a propagator reads them. What a peer has sent may be of any type; only texts are contexts."""

    def get(self, carrier: Table, key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Table) -> list[str]:
        return list(carrier)


_TEXTS = _Texts()


def _context_in(headers: Table) -> SpanContext | None:
    """Return the context of a span in these headers."""
    if not headers:
        return None
    context = trace.get_current_span(propagate.extract(headers, Context(), _TEXTS)).get_span_context()
    return context if context.is_valid else None


def _links(context: SpanContext | None) -> tuple[Link, ...]:
    return () if context is None else (Link(context),)


def _of_publish(message: Message) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "messaging.destination.name": _destination(message.exchange, message.routing_key),
        "messaging.message.body.size": len(message.body),
    }
    properties = message.properties
    assert properties is not None  # an interceptor's message has some
    return _named(found, message.routing_key, properties.message_id, properties.correlation_id)


def _of_message(message: IncomingMessage, queue: str) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "messaging.destination.name": _destination(message.exchange, message.routing_key, queue),
        "messaging.message.body.size": len(message.body),
        "messaging.rabbitmq.message.delivery_tag": message.delivery_tag,
    }
    return _named(found, message.routing_key, message.properties.message_id, message.properties.correlation_id)


def _named(
    found: dict[str, AttributeValue], routing_key: str, message_id: str | None, correlation_id: str | None
) -> dict[str, AttributeValue]:
    if routing_key:
        found["messaging.rabbitmq.destination.routing_key"] = _text(routing_key)
    if message_id is not None:
        found["messaging.message.id"] = _text(message_id)
    if correlation_id is not None:
        found["messaging.message.conversation_id"] = _text(correlation_id)
    return found


def _destination(exchange: str, routing_key: str, queue: str = "") -> str:
    """Return the convention's name of a destination: its parts that are not empty, each once."""
    parts = [exchange, routing_key, queue if queue != routing_key else ""]
    return _text(":".join(part for part in parts if part)) or "amq.default"


def _text(text: str) -> str:
    """Return what an exporter can encode: a peer may have sent bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
