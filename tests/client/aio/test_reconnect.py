"""The asyncio client when its connection is lost: what is raised, what waits, and what comes back."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import pytest

import kvitto
from kvitto.client import AMQPError, ConnectFailed, ConnectionLost
from kvitto.client.aio import Closed, Disconnected, Event, PublishUnknown, Reconnected, TopologyFailed
from tests.support.faults import Faults
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")


class HasUrl(Protocol):
    url: str
    port: int


def url(proxy: Faults) -> str:
    return f"amqp://guest:guest@127.0.0.1:{proxy.port}/"


async def until(condition: Callable[[], Any]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def cut(proxy: Faults, connection: kvitto.Connection) -> None:
    """Reset the connection, and return when the client has noticed."""
    link = connection._link
    proxy.cut()
    await until(lambda: link is None or link.lost is not None)


@asynchronous
async def test_unconfirmed_publishes_are_unknown_and_later_ones_wait(kvitto_broker: HasUrl) -> None:
    events: list[Event] = []
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy), on_event=events.append) as connection:
        channel = await connection.channel()
        queue = await channel.queue("q", durable=True)
        proxy.mute = True
        tasks = [asyncio.create_task(channel.publish(b"%d" % n, "q")) for n in range(100)]
        many = asyncio.create_task(channel.publish_many([b"m"] * 10, "q"))
        look = asyncio.create_task(queue.get())
        await until(lambda: not connection._link.core.scheduled)
        await asyncio.sleep(0)
        proxy.cut()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, PublishUnknown) for outcome in outcomes), outcomes
        assert all(isinstance(outcome.__cause__, ConnectionLost) for outcome in outcomes)
        with pytest.raises(AMQPError, match="10 of 10"):
            await many
        with pytest.raises(ConnectionLost):
            await look
        proxy.mute = False
        await channel.publish(b"later", "q")
        assert [type(event) for event in events if isinstance(event, Disconnected | Reconnected)] == [
            Disconnected,
            Reconnected,
        ]


@asynchronous
async def test_unconfirmed_publishes_are_sent_again_by_choice_and_duplicates_can_be_told(kvitto_broker: HasUrl) -> None:
    async with (
        Faults(kvitto_broker.port) as proxy,
        kvitto.connect(url(proxy), on_unconfirmed="resend") as connection,
        connection.channel() as channel,
    ):
        queue = await channel.queue("q", durable=True)
        await channel.publish(b"first", "q", message_id="mine")
        plain, named = kvitto.Message(b"plain"), kvitto.Message(b"named", type="t")
        await channel.publish_many([plain, plain, named, named], "q")
        assert plain.properties is None and named.properties is not None and named.properties.message_id is None
        for _ in range(3):
            proxy.mute = True
            tasks = [asyncio.create_task(channel.publish(b"%d" % n, "q", mandatory=n % 2 == 0)) for n in range(100)]
            many = asyncio.create_task(channel.publish_many((b"m%d" % n for n in range(5000)), "q"))
            await asyncio.sleep(0.01)
            proxy.cut()
            proxy.mute = False
            await asyncio.gather(*tasks)
            assert await many == 5000
        seen: dict[str, bytes] = {}
        async for message in queue.consume(prefetch=1000):
            message.ack()
            assert message.properties.message_id
            seen[message.properties.message_id] = message.body
            if len(seen) == 5 + 3 * 5100:
                break
        assert seen["mine"] == b"first"
        assert sorted(seen.values()) == sorted(
            [b"first"]
            + 2 * [b"plain", b"named"]
            + 3 * [b"%d" % n for n in range(100)]
            + 3 * [b"m%d" % n for n in range(5000)]
        )


@asynchronous
async def test_a_consumer_goes_on_and_acks_of_lost_deliveries_say_so(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        queue = await channel.queue("q", durable=True)
        await channel.publish_many([b"%d" % n for n in range(300)], "q")
        done: dict[bytes, int] = {}
        dropped = 0
        async with queue.consume(prefetch=20) as consumer:
            while len(done) < 300:
                message = await anext(consumer)
                if len(done) in (50, 150, 299) and not message.redelivered:
                    await cut(proxy, connection)
                if message.ack():
                    done[message.body] = done.get(message.body, 0) + 1
                else:
                    dropped += 1
        assert dropped >= 2
        async with kvitto.connect(kvitto_broker.url) as other, other.channel() as looking:
            assert (await looking.queue("q", passive=True)).message_count == 0


@asynchronous
async def test_the_topology_comes_back_with_new_names_where_the_broker_chooses(kvitto_broker: HasUrl) -> None:
    events: list[Event] = []
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy), on_event=events.append) as connection:
        channel = await connection.channel()
        gone = await channel.queue("gone", exclusive=True)
        await gone.delete()
        source = await channel.exchange("source", "topic", auto_delete=True)
        exchange = await channel.exchange("news", "fanout", auto_delete=True)
        await exchange.bind(source, "#")
        queue = await channel.queue(exclusive=True)
        await queue.bind(exchange)
        first = queue.name
        async with queue.consume() as consumer:
            for n in range(3):
                events.clear()
                proxy.cut()
                await until(lambda: any(isinstance(event, Reconnected) for event in events))
                await source.publish(b"%d" % n, "key", mandatory=True)
                message = await anext(consumer)
                assert message.body == b"%d" % n and message.ack()
        assert queue.name != first
        assert not [event for event in events if isinstance(event, TopologyFailed)]
        with pytest.raises(AMQPError, match="404"):
            await channel.queue("gone", passive=True)


@asynchronous
async def test_what_the_broker_refuses_to_declare_again_is_told_and_the_rest_follows(kvitto_broker: HasUrl) -> None:
    events: list[Event] = []
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy), on_event=events.append) as connection:
        channel = await connection.channel()
        await channel.queue("a", durable=True)
        mine = await channel.queue("b", exclusive=True)
        async with kvitto.connect(kvitto_broker.url) as other, other.channel() as changing:
            await (await changing.queue("a", passive=True)).delete()
            await changing.queue("a", durable=True, arguments={"x-max-length": 3})
        proxy.cut()
        await until(lambda: any(isinstance(event, Reconnected) for event in events))
        (failed,) = [event for event in events if isinstance(event, TopologyFailed)]
        assert "inequivalent arg" in str(failed.error) and "'a'" in failed.what
        await channel.publish(b"x", mine.name, mandatory=True)


@asynchronous
async def test_a_stream_goes_on_after_the_last_message_that_was_taken(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        queue = await channel.queue("s", durable=True, arguments={"x-queue-type": "stream"})
        await channel.publish_many([b"%d" % n for n in range(50)], "s")
        seen = []
        async for message in queue.consume(prefetch=5, offset="first"):
            seen.append(message.body)
            if len(seen) % 10 == 0 and len(seen) < 50:
                await cut(proxy, connection)
            message.ack()
            if len(seen) == 50:
                break
        assert seen == [b"%d" % n for n in range(50)]


@asynchronous
async def test_a_reset_after_any_number_of_bytes_leaves_nothing_hanging(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy:
        for left in [*range(40), *range(40, 1400, 23)]:
            proxy.left = left
            async with asyncio.timeout(30), kvitto.connect(kvitto_broker.url) as other, other.channel() as cleaning:
                await (await cleaning.queue("q", durable=True)).purge()
                with contextlib.suppress(ConnectFailed):
                    async with kvitto.connect(url(proxy)) as connection:
                        await use(connection)
            proxy.left = None


async def use(connection: kvitto.Connection) -> None:
    """Publish until it succeeds, consume until it came."""
    while True:
        try:
            channel = await connection.channel()
            queue = await channel.queue("q", durable=True)
            await channel.publish(b"hello", "q")
            break
        except (ConnectionLost, PublishUnknown):
            continue
    async for message in queue.consume():
        if message.ack():
            break


@asynchronous
async def test_one_byte_at_a_time_is_enough(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy:
        proxy.slow = True
        async with kvitto.connect(url(proxy)) as connection, connection.channel() as channel:
            queue = await channel.queue("q", durable=True)
            await channel.publish_many([b"%d" % n for n in range(20)], "q")
            bodies = []
            async for message in queue.consume():
                async with message:
                    bodies.append(message.body)
                if len(bodies) == 20:
                    break
            assert bodies == [b"%d" % n for n in range(20)]


@asynchronous
async def test_a_silent_server_is_given_up_after_two_heartbeat_intervals(kvitto_broker: HasUrl) -> None:
    events: list[Event] = []
    async with Faults(kvitto_broker.port) as proxy:
        async with kvitto.connect(url(proxy) + "?heartbeat=60", on_event=events.append) as connection:
            proxy.mute = True
            link = connection._link
            assert link is not None and link.heartbeat_s == 60
            link.received_at -= 119
            link._timer.cancel()
            link._beat()
            assert connection.connected
            link.received_at -= 2
            link._timer.cancel()
            link._beat()
            assert not connection.connected
            proxy.mute = False
            await until(lambda: connection.connected)
        assert "silent for two heartbeat intervals" in str(events[0])


@asynchronous
async def test_heartbeats_are_sent_while_nothing_else_is(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(kvitto_broker.url + "?heartbeat=60") as connection:
        link = connection._link
        assert link is not None and link.transport is not None
        link.flush()
        sent: list[bytes] = []
        link.transport.write = sent.append  # type: ignore[method-assign, assignment]
        link.sent_at -= 30
        link._timer.cancel()
        link._beat()
        link._timer.cancel()
        link._beat()
        assert sent == [b"\x08\0\0\0\0\0\0\xce"]
        del link.transport.write


@asynchronous
async def test_a_transaction_on_a_lost_connection_raises_and_can_begin_again(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        queue = await channel.queue("q", durable=True)
        with pytest.raises(ConnectionLost, match="during the transaction"):  # noqa: PT012
            async with channel.transaction():
                await channel.publish(b"1", "q")
                await cut(proxy, connection)
                await channel.publish(b"2", "q")
        async with channel.transaction():
            await channel.publish(b"3", "q")
        message = await queue.get()
        assert message is not None and (message.body, message.message_count) == (b"3", 0)


@asynchronous
async def test_a_call_by_reply_to_is_told_that_its_answer_does_not_come(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        queue = await channel.queue("questions", durable=True)
        async with channel.rpc() as rpc, queue.consume() as consumer:
            asking = asyncio.create_task(rpc.call(b"lost?", "questions"))
            (await anext(consumer)).ack()
            await cut(proxy, connection)
            with pytest.raises(ConnectionLost):
                await asking
            asking = asyncio.create_task(rpc.call(b"new?", "questions"))
            while (message := await anext(consumer)).body != b"new?":  # the first ack may have been lost
                message.ack()
            message.ack()
            await channel.reply(message, b"!")
            assert (await asking).body == b"!"


@asynchronous
async def test_only_what_was_asked_is_lost_and_a_cancelled_publish_is_not_sent_again(kvitto_broker: HasUrl) -> None:
    async with (
        Faults(kvitto_broker.port) as proxy,
        kvitto.connect(url(proxy), on_unconfirmed="resend") as connection,
        connection.channel() as channel,
    ):
        queue = await channel.queue("q", durable=True)
        async with channel.rpc() as rpc, connection.channel() as other:
            proxy.stall()
            cancelled = asyncio.create_task(other.publish(b"cancelled", "q"))
            kept = asyncio.create_task(other.publish(b"kept", "q"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            link = connection._link
            proxy.cut()
            proxy.flow()
            await until(lambda: link is None or link.lost is not None)
            waiting = asyncio.create_task(rpc.call(b"question", "q"))
            await kept
            found: list[bytes] = []
            while len(found) < 2:
                if (message := await queue.get(no_ack=True)) is not None:
                    found.append(message.body)
                    if message.body == b"question":
                        await channel.reply(message, b"answer")
            assert sorted(found) == [b"kept", b"question"]
            assert (await waiting).body == b"answer"
            with pytest.raises(ValueError, match="waits for its answer already"):
                await asyncio.gather(*(rpc.call(b"?", "q", correlation_id="c") for _ in range(2)))


@asynchronous
async def test_without_reconnecting_everything_raises_the_reason(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy), reconnect=False) as connection:
        channel = await connection.channel()
        queue = await channel.queue("q", durable=True)
        async with queue.consume() as consumer:
            waiting: asyncio.Task[object] = asyncio.create_task(consumer.__anext__())
            await asyncio.sleep(0)
            proxy.cut()
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await waiting
                waiting = asyncio.create_task(channel.publish(b"x", "q"))
            with pytest.raises(ConnectionLost):
                await waiting
            with pytest.raises(ConnectionLost):
                await connection.channel()
        assert isinstance(connection.closed, ConnectionLost)


@asynchronous
async def test_closing_ends_what_waits_for_the_connection(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy:
        connection = await kvitto.connect(url(proxy))
        channel = await connection.channel()
        queue = await channel.queue("q", durable=True)
        proxy.refuse = True
        await cut(proxy, connection)
        waiting = [asyncio.create_task(channel.publish(b"x", "q")), asyncio.create_task(queue.purge())]
        await until(lambda: proxy.accepted > 3)
        await connection.close()
        assert [type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)] == [Closed, Closed]
        await connection.close()


@asynchronous
async def test_of_several_hosts_one_that_answers_is_used(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as bad, Faults(kvitto_broker.port) as good:
        bad.refuse = True
        with pytest.raises(ConnectFailed, match="during the handshake"):
            await kvitto.connect(url(bad))
        async with kvitto.connect([url(bad), url(good)]) as connection:
            await cut(good, connection)
            await until(lambda: connection.connected)
            channel = await connection.channel()
            assert (await channel.queue(exclusive=True)).name


@asynchronous
async def test_a_server_that_never_answers_is_given_up(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy:
        proxy.mute = True
        with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
            await kvitto.connect(url(proxy) + "?connection_timeout=50")


@asynchronous
async def test_an_exception_of_the_callback_goes_to_the_loop(kvitto_broker: HasUrl) -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda loop, context: told.append(context))

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy), on_event=fail) as connection:
        await cut(proxy, connection)
        await until(lambda: connection.connected)
    loop.set_exception_handler(before)
    assert len(told) >= 2 and all(isinstance(context["exception"], ZeroDivisionError) for context in told)


@asynchronous
async def test_publishes_wait_while_the_broker_does_not_read(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        queue = await channel.queue("q", durable=True)
        proxy.stall()
        body = bytes(1 << 20)
        tasks = [asyncio.create_task(channel.publish(body, "q")) for _ in range(64)]
        await until(lambda: connection._link.paused)
        late = asyncio.create_task(channel.publish(b"late", "q"))
        await asyncio.sleep(0.01)
        core = channel._core
        assert core is not None and not core.open
        proxy.flow()
        await asyncio.gather(*tasks, late)
        assert (await channel.queue("q", passive=True)).message_count == 65
        await queue.purge()


@asynchronous
async def test_a_publish_on_a_channel_whose_close_was_cancelled_ends_with_the_connection(kvitto_broker: HasUrl) -> None:
    """The channel does not come back, so its messages are not sent again, and their outcome is unknown."""
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy), on_unconfirmed="resend") as connection:
        channel = await connection.channel()
        await channel.queue("q", durable=True)
        proxy.mute = True
        publish = asyncio.create_task(channel.publish(b"1", "q"))
        many = asyncio.create_task(channel.publish_many([b"2"], "q"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await cut(proxy, connection)
        with pytest.raises(PublishUnknown):
            await asyncio.wait_for(publish, 30)
        with pytest.raises(AMQPError, match="1 of 1"):
            await asyncio.wait_for(many, 30)
