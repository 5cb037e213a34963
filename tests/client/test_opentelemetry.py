"""The interceptor for OpenTelemetry: spans, their attributes, and the context that goes with a message."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

import kvitto
from tests.support.running import asynchronous

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvitto.client.opentelemetry import OpenTelemetry


class HasUrl(Protocol):
    url: str


class Spans:
    """What the interceptor has recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.interceptor = OpenTelemetry(self.provider)
        self.tracer = self.provider.get_tracer("test")

    def take(self) -> list[ReadableSpan]:
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.take() if span.name == name]
        return found


def context(span: ReadableSpan) -> str:
    """The span's place as a traceparent begins."""
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"


def carried(message: kvitto.IncomingMessage | None) -> str:
    """The same of the context that a message has, without the flags of the SDK."""
    assert message is not None
    return str(message.headers["traceparent"]).rpartition("-")[0]


@asynchronous
async def test_the_handling_of_a_message_is_a_child_of_its_publish(kvitto_broker: HasUrl) -> None:
    spans = Spans()
    connecting = kvitto.connect(kvitto_broker.url, interceptors=[spans.interceptor])
    async with connecting as connection, connection.channel() as channel:
        queue = await channel.queue("orders")
        exchange = await channel.exchange("shop", "topic")
        await queue.bind(exchange, "new.#")
        with spans.tracer.start_as_current_span("program") as program:
            await exchange.publish(b"hello", "new.order", message_id="m1", correlation_id="c1")
        publish = spans.one("publish shop:new.order")
        async for message in queue.consume():
            async with message:
                inside = trace.get_current_span().get_span_context()
            break
        assert carried(message) == context(publish)
        process = spans.one("process shop:new.order:orders")
    assert publish.parent is not None and publish.parent.span_id == program.get_span_context().span_id
    assert publish.kind == trace.SpanKind.PRODUCER and process.kind == trace.SpanKind.CONSUMER
    assert process.parent is not None and process.parent.span_id == publish.context.span_id
    assert inside.span_id == process.context.span_id
    common = {
        "messaging.system": "rabbitmq",
        "messaging.rabbitmq.destination.routing_key": "new.order",
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c1",
        "messaging.message.body.size": 5,
    }
    assert publish.attributes == {
        **common,
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "shop:new.order",
    }
    assert process.attributes == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "shop:new.order:orders",
        "messaging.rabbitmq.message.delivery_tag": 1,
    }


def test_threads_have_their_own_current_span_and_a_span_of_the_program_gets_a_link(kvitto_broker: HasUrl) -> None:
    spans = Spans()
    connecting = kvitto.connect_sync(kvitto_broker.url, interceptors=[spans.interceptor])
    with connecting as connection, connection.channel() as channel:
        queue = channel.queue("q")
        with spans.tracer.start_as_current_span("program") as program:
            channel.publish(b"", "q")
        publish = spans.one("publish q")
        assert publish.parent is not None and publish.parent.span_id == program.get_span_context().span_id
        with spans.tracer.start_as_current_span("batch") as batch:
            for message in queue.consume():
                with message:
                    pass
                break
        process = spans.one("process q")
        assert process.parent is not None and process.parent.span_id == batch.get_span_context().span_id
        assert [link.context.span_id for link in process.links] == [publish.context.span_id]


@asynchronous
async def test_each_message_of_a_stream_has_a_context_of_its_own(kvitto_broker: HasUrl) -> None:
    spans = Spans()
    connecting = kvitto.connect(kvitto_broker.url, interceptors=[spans.interceptor])
    async with connecting as connection, connection.channel() as channel:
        queue = await channel.queue("q")
        await channel.publish_many([b"1", b"2"], "q")
        *created, publish = spans.take()
        assert [span.name for span in created] == ["create q"] * 2 and publish.name == "publish q"
        assert publish.kind == trace.SpanKind.CLIENT
        assert publish.attributes is not None and publish.attributes["messaging.batch.message_count"] == 2
        assert all(span.parent is not None and span.parent.span_id == publish.context.span_id for span in created)
        assert [carried(await queue.get()) for _ in created] == [context(span) for span in created]


@asynchronous
async def test_a_failure_is_in_the_span_and_a_context_of_the_program_stays(kvitto_broker: HasUrl) -> None:
    spans = Spans()
    connecting = kvitto.connect(kvitto_broker.url, interceptors=[spans.interceptor])
    async with connecting as connection, connection.channel() as channel:
        queue = await channel.queue("q")
        mine: dict[str, Any] = {"traceparent": f"00-{1:032x}-{2:016x}-01", "tracestate": "vendor=1"}
        await channel.publish(b"", "q", headers=mine)
        publish = spans.one("publish q")
        assert [link.context.span_id for link in publish.links] == [2]
        async for message in queue.consume():
            assert message.headers == mine
            with pytest.raises(KeyError):
                async with message:
                    raise KeyError("no such order")
            break
        process = spans.one("process q")
        assert process.parent is not None and (process.parent.trace_id, process.parent.span_id) == (1, 2)
        assert process.parent.trace_state == {"vendor": "1"}
        assert process.attributes is not None and process.attributes["error.type"] == "KeyError"
        assert process.status.status_code == trace.StatusCode.ERROR
        with pytest.raises(kvitto.client.aio.Returned):
            await channel.publish(b"", "nowhere", mandatory=True)
        failed = spans.one("publish nowhere")
        assert failed.attributes is not None and failed.attributes["error.type"] == "kvitto.client.aio.errors.Returned"


@asynchronous
async def test_headers_that_are_no_context_start_a_new_trace(kvitto_broker: HasUrl) -> None:
    spans = Spans()
    connecting = kvitto.connect(kvitto_broker.url, interceptors=[spans.interceptor])
    async with connecting as connection, kvitto.connect(kvitto_broker.url) as other, other.channel() as plain:
        channel = await connection.channel()
        queue = await channel.queue("q")
        wrong: list[Any] = [
            5,
            b"\xff\xfe",
            "00-garbage",
            None,
            ["00"],
            {"a": 1},
            "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        ]
        for value in wrong:
            await plain.publish(b"", "q", headers={"traceparent": value, "tracestate": value, "baggage": value})
        for _ in wrong:
            message = await queue.get()
            assert message is not None
            async with message:
                pass
            process = spans.one("process q")
            assert process.parent is None and process.links == ()
