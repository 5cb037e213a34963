"""The asyncio client against each broker: what it publishes, declares and consumes does the same with both."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

import kvitto
from kvitto.client import AMQPError, ChannelClosed, ConnectFailed, ConsumerCancelled
from kvitto.client.aio import AlreadySettled, ManyFailed, Nacked, Returned
from tests.support.running import asynchronous


def url(port: int, vhost: str = "%2f") -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/{vhost}"


async def bodies(consumer: kvitto.Consumer, count: int) -> list[bytes]:
    found = []
    async for message in consumer:
        message.ack()
        found.append(message.body)
        if len(found) == count:
            break
    return found


@asynchronous
async def test_a_message_is_published_confirmed_consumed_and_acked(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        await channel.publish(b"hello", queue.name, headers={"n": 1, "deep": {"list": [True, None, "x"]}}, priority=3)
        async for message in queue.consume():
            async with message:
                assert message.body == b"hello"
                assert message.headers == {"n": 1, "deep": {"list": [True, None, "x"]}}
                assert message.properties.priority == 3
                assert message.properties.delivery_mode == 2
                assert (message.exchange, message.routing_key, message.redelivered) == ("", queue.name, False)
            break
        assert await queue.get() is None


@asynchronous
async def test_properties_are_plain_python_types(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        when = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
        await channel.publish(
            b"",
            queue.name,
            content_type="text/plain",
            timestamp=when,
            expiration=60,
            message_id="m",
            type="t",
            app_id="a",
        )
        message = await queue.get(no_ack=True)
        assert message is not None
        properties = message.properties
        assert properties.timestamp == int(when.timestamp())
        assert properties.expiration == "60000"
        assert (properties.content_type, properties.message_id, properties.type) == ("text/plain", "m", "t")
        assert message.settled


@asynchronous
async def test_a_thousand_tasks_publish_and_all_messages_arrive(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                group.create_task(channel.publish(b"%d" % number, queue.name))
        found = await bodies(queue.consume(prefetch=50), 1000)
        assert found == [b"%d" % number for number in range(1000)]


@asynchronous
async def test_a_mandatory_message_without_a_queue_is_returned_with_the_reason(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        with pytest.raises(Returned, match="312 NO_ROUTE") as error:
            await channel.publish(b"lost", "no-such-queue", mandatory=True, message_id="m")
        assert error.value.routing_key == "no-such-queue" and error.value.body == b"lost"
        assert error.value.properties.message_id == "m"
        await channel.publish(b"lost", "no-such-queue")
        outcomes = await asyncio.gather(
            *(channel.publish(b"x", queue.name if n % 2 else "nowhere", mandatory=True) for n in range(100)),
            return_exceptions=True,
        )
        assert [isinstance(outcome, Returned) for outcome in outcomes] == [n % 2 == 0 for n in range(100)]


@asynchronous
async def test_a_refused_message_raises_nacked(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await channel.queue(exclusive=True, arguments=full)  # type: ignore[arg-type]
        await channel.publish(b"1", queue.name)
        with pytest.raises(Nacked):
            await channel.publish(b"2", queue.name)
        with pytest.raises(ManyFailed) as error:
            await channel.publish_many([b"3"] * 10, queue.name)
        assert error.value.taken == 10
        assert [index for index, _ in error.value.failed] == list(range(10))
        assert all(isinstance(failed, Nacked) for _, failed in error.value.failed)


@asynchronous
async def test_a_stream_of_messages_is_published_in_order_and_counted(port: int) -> None:
    async def numbers() -> AsyncIterator[kvitto.Message]:
        for number in range(20_000, 20_100):
            yield kvitto.Message(b"%d" % number, headers={"n": number})

    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        assert await channel.publish_many((b"%d" % number for number in range(20_000)), queue.name) == 20_000
        assert await channel.publish_many(numbers(), queue.name) == 100
        assert await channel.publish_many([], queue.name) == 0
        assert await bodies(queue.consume(prefetch=1000), 20_100) == [b"%d" % number for number in range(20_100)]


@asynchronous
async def test_messages_of_a_stream_go_where_they_say_and_mandatory_ones_are_returned(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        messages = [kvitto.Message(b"a", queue.name), kvitto.Message(b"b", "nowhere"), kvitto.Message(b"c", queue.name)]
        with pytest.raises(ManyFailed) as error:
            await channel.publish_many(messages, mandatory=True)
        ((index, failed),) = error.value.failed
        assert index == 1 and isinstance(failed, Returned)
        assert await bodies(queue.consume(), 2) == [b"a", b"c"]


@asynchronous
async def test_large_bodies_arrive_whole(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        sent = [bytes([n]) * (n * 100_000) for n in range(1, 30)]
        await channel.publish_many(sent, queue.name)
        assert await bodies(queue.consume(prefetch=5), len(sent)) == sent


@asynchronous
async def test_a_failed_block_rejects_or_requeues_as_told(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        dead = await channel.queue(exclusive=True)
        queue = await channel.queue(
            exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
        )
        await channel.publish(b"hard", queue.name)
        consumer = queue.consume()
        message = await anext(consumer)
        with pytest.raises(ZeroDivisionError):
            async with message.process(on_error="requeue"):
                raise ZeroDivisionError
        message = await anext(consumer)
        assert message.redelivered
        with pytest.raises(ZeroDivisionError):
            async with message:
                raise ZeroDivisionError
        async for message in dead.consume():
            async with message:
                assert message.body == b"hard" and "x-death" in message.headers
            break
        await consumer.cancel()


@asynchronous
async def test_leaving_the_loop_returns_messages_that_were_not_taken(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        await channel.publish_many([b"%d" % n for n in range(10)], queue.name)
        async for message in queue.consume():
            message.ack()
            if message.body == b"3":
                break
        assert await bodies(queue.consume(prefetch=1), 6) == [b"%d" % n for n in range(4, 10)]


@asynchronous
async def test_prefetch_limits_what_is_not_settled(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        await channel.publish_many([b"%d" % n for n in range(10)], queue.name)
        async with queue.consume(prefetch=3) as consumer:
            taken = [await anext(consumer) for _ in range(3)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(consumer)
            taken[1].ack()
            assert (await anext(consumer)).body == b"3"
            taken[2].nack(multiple=True, requeue=False)
            assert [(await anext(consumer)).body for _ in range(2)] == [b"4", b"5"]
            with pytest.raises(AlreadySettled):
                taken[0].ack()


@asynchronous
async def test_a_message_is_settled_once(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        await channel.publish_many([b"1", b"2"], queue.name)
        first, second = await queue.get(), await queue.get()
        assert first is not None and second is not None and first.message_count == 1
        assert second.ack(multiple=True) and first.settled
        for message in (first, second):
            with pytest.raises(AlreadySettled):
                message.ack()
        async with first:
            pass  # settled already: nothing to do
        assert await queue.get() is None


@asynchronous
async def test_a_deleted_queue_ends_its_consumer(port: int) -> None:
    events: list[object] = []
    async with kvitto.connect(url(port), on_event=events.append) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        async with queue.consume() as consumer:
            assert await queue.delete() == 0
            with pytest.raises(ConsumerCancelled, match=r"basic\.cancel"):
                await anext(consumer)
        assert [type(event).__name__ for event in events] == ["ConsumerFailed"]


@asynchronous
async def test_a_closed_channel_names_the_reason_in_every_call_and_the_connection_goes_on(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        with pytest.raises(ChannelClosed, match="404"):
            await channel.queue("no-such-queue", passive=True)
        for _ in range(2):
            with pytest.raises(ChannelClosed, match="404"):
                await channel.publish(b"x", "y")
        async with connection.channel() as another:
            assert (await another.queue(exclusive=True)).name


@asynchronous
async def test_a_publish_to_an_exchange_that_is_not_there_names_it(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        with pytest.raises(AMQPError, match="no exchange 'nowhere'"):
            await channel.publish(b"x", "y", exchange="nowhere")


@asynchronous
async def test_exchanges_and_bindings(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        topic = await channel.exchange("client-topic", "topic")
        fanout = await channel.exchange("client-fanout", "fanout")
        queue = await channel.queue(exclusive=True)
        await queue.bind(fanout)
        await fanout.bind(topic, "a.*")
        await topic.publish(b"1", "a.b")
        await topic.publish(b"2", "b.b")
        await fanout.unbind(topic, "a.*")
        await queue.bind(topic, "c.#")
        await topic.publish_many([b"3", b"4"], "c.d.e")
        assert await bodies(queue.consume(), 3) == [b"1", b"3", b"4"]
        await queue.unbind(topic, "c.#")
        await queue.unbind(fanout)
        for exchange in (topic, fanout):
            await exchange.delete()
        assert not connection.topology.exchanges and not connection.topology.queue_bindings


@asynchronous
async def test_a_transaction_commits_or_rolls_back(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        async with channel.transaction():
            await channel.publish(b"1", queue.name)
            await channel.publish(b"2", queue.name)
            assert await queue.get() is None
        with contextlib.suppress(ZeroDivisionError):
            async with channel.transaction():
                await channel.publish(b"3", queue.name)
                raise ZeroDivisionError
        async with channel.transaction():
            first = await queue.get()
            assert first is not None and first.message_count == 1
            first.ack()
        with pytest.raises(AMQPError, match="has transactions"):
            await channel.publish(b"4", queue.name)
        second = await queue.get()
        assert second is not None and (second.body, second.message_count) == (b"2", 0)


@asynchronous
async def test_a_call_gets_its_answer_by_direct_reply_to(port: int) -> None:
    async def serve(channel: kvitto.Channel, queue: kvitto.Queue) -> None:
        async for question in queue.consume():
            async with question:
                await channel.reply(question, question.body.upper())

    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        server = asyncio.create_task(serve(channel, queue))
        async with connection.channel() as asking, asking.rpc() as rpc:
            answers = await asyncio.gather(*(rpc.call(b"ping %d" % n, queue.name) for n in range(20)))
            assert [answer.body for answer in answers] == [b"PING %d" % n for n in range(20)]
            with pytest.raises(Returned):
                await rpc.call(b"ping", "nobody")
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


@asynchronous
async def test_a_stream_is_read_from_an_offset(port: int) -> None:
    async with kvitto.connect(url(port)) as connection, connection.channel() as channel:
        queue = await channel.queue("client-stream", durable=True, arguments={"x-queue-type": "stream"})
        try:
            await channel.publish_many([b"%d" % n for n in range(10)], queue.name)
            async with queue.consume(offset=4, prefetch=10) as consumer:
                messages: list[kvitto.IncomingMessage] = []
                while len(messages) < 6:
                    message = await anext(consumer)
                    message.ack()
                    if (message.offset or 0) >= 4:  # RabbitMQ begins with the chunk that has the offset
                        messages.append(message)
                assert [(message.body, message.offset) for message in messages] == [
                    (b"%d" % n, n) for n in range(4, 10)
                ]
        finally:
            await queue.delete()


@asynchronous
async def test_a_wrong_password_and_a_missing_vhost_are_named(port: int) -> None:
    with pytest.raises(ConnectFailed, match="login refused") as refused:
        await kvitto.connect(f"amqp://guest:wrong@127.0.0.1:{port}/")
    assert refused.value.code == 403 and "wrong" not in str(refused.value)
    with pytest.raises(ConnectFailed, match="no access to the virtual host") as missing:
        await kvitto.connect(url(port, "nowhere"))
    assert missing.value.code == 530


@asynchronous
async def test_without_confirms_publish_returns_at_once_and_a_returned_message_is_an_event(port: int) -> None:
    events: list[object] = []
    async with (
        kvitto.connect(url(port), on_event=events.append) as connection,
        connection.channel(confirms=False) as channel,
    ):
        queue = await channel.queue(exclusive=True)
        await channel.publish(b"1", queue.name)
        await channel.publish(b"2", "nowhere", mandatory=True)
        assert await channel.publish_many([b"3"] * 100, queue.name) == 100
        assert len(await bodies(queue.consume(), 101)) == 101
    (event,) = events
    assert type(event).__name__ == "MessageReturned"
