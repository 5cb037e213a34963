"""What frameworks declare when they start: it has to be taken, and two of them have to be able to share a queue."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import aio_pika
import pika
import pytest
from faststream.rabbit import QueueType, RabbitBroker, RabbitQueue
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue
from taskiq_aio_pika import QueueType as TaskiqType

NSERVICEBUS_LEVELS = 28


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_faststream_shares_a_queue_with_a_client_that_names_no_type(url: str, name: str) -> None:
    """FastStream always sends x-queue-type=classic, pika and most others send nothing."""

    async def meet() -> None:
        plain = await aio_pika.connect(url)
        channel = await plain.channel()
        queue = await channel.declare_queue(name, durable=True)
        broker = RabbitBroker(url)
        got: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        @broker.subscriber(RabbitQueue(name, durable=True))
        async def handle(body: str) -> None:
            got.set_result(body)

        await broker.start()
        await channel.default_exchange.publish(aio_pika.Message(b"hello", content_type="text/plain"), name)
        assert await got == "hello"
        await broker.stop()
        await queue.delete(if_unused=False, if_empty=False)
        await plain.close()

    run(meet())


@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM, QueueType.STREAM])
def test_faststream_declares_its_queue_types_again_and_again(url: str, name: str, kind: QueueType) -> None:
    async def declare() -> None:
        for _ in range(2):
            async with RabbitBroker(url) as broker:
                await broker.declare_queue(RabbitQueue(name, queue_type=kind, durable=True))

    run(declare())


def test_taskiq_runs_a_task_and_a_delayed_one(url: str, name: str) -> None:
    async def work() -> None:
        broker = AioPikaBroker(
            url,
            exchange=Exchange(name=name),
            task_queues=[Queue(name=name, type=TaskiqType.CLASSIC)],
            dead_letter_queue=Queue(name=name + ".dead", type=TaskiqType.CLASSIC),
            delay_queue=Queue(name=name + ".delay"),
        )
        broker.is_worker_process = True
        done: dict[int, asyncio.Event] = {1: asyncio.Event(), 2: asyncio.Event()}

        @broker.task(task_name=name)
        async def task(number: int) -> None:
            done[number].set()

        async def listen() -> None:
            async for message in broker.listen():
                decoded = broker.formatter.loads(message.data)
                await task.original_func(*decoded.args)
                await message.ack()  # type: ignore[misc]

        await broker.startup()
        listener = asyncio.create_task(listen())
        await task.kiq(1)
        await task.kicker().with_labels(delay=1).kiq(2)
        await asyncio.gather(*(event.wait() for event in done.values()))
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        await broker.shutdown()

    run(work())


def test_nservicebus_delay_levels(url: str, name: str) -> None:
    """28 quorum queues, the level n waits 2^n seconds and hands on to the level below: 134,217,728,000 ms at the top."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for _ in range(2):  # every endpoint declares them
            for level in reversed(range(NSERVICEBUS_LEVELS)):
                exchange = f"{name}-{level:02}"
                channel.exchange_declare(exchange, "topic", durable=True)
                arguments = {
                    "x-queue-type": "quorum",
                    "x-dead-letter-strategy": "at-least-once",
                    "x-overflow": "reject-publish",
                    "x-message-ttl": 1000 << level,
                    "x-dead-letter-exchange": f"{name}-{level - 1:02}" if level else f"{name}-delivery",
                }
                channel.queue_declare(exchange, durable=True, arguments=arguments)
        channel.exchange_declare(f"{name}-delivery", "topic", durable=True)
        for level in range(NSERVICEBUS_LEVELS):
            above = "*." * (NSERVICEBUS_LEVELS - 1 - level)
            channel.queue_bind(f"{name}-{level:02}", f"{name}-{level:02}", f"{above}1.#")
            target = f"{name}-{level - 1:02}" if level else f"{name}-delivery"
            channel.exchange_bind(target, f"{name}-{level:02}", f"{above}0.#")
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, f"{name}-delivery", f"#.{name}")
        channel.confirm_delivery()
        steps = ".".join("1" if level == 0 else "0" for level in reversed(range(NSERVICEBUS_LEVELS)))
        channel.basic_publish(f"{name}-{NSERVICEBUS_LEVELS - 1:02}", f"{steps}.{name}", b"in a second")
        found = next(channel.consume(name, auto_ack=True, inactivity_timeout=20))
        assert found[2] == b"in a second"


def test_springs_queue_builder(url: str, name: str) -> None:
    """What QueueBuilder of Spring AMQP can put together, by a client that declares it twice."""
    queues: list[dict[str, Any]] = [
        {"x-queue-type": "classic"},
        {"x-queue-type": "quorum", "x-delivery-limit": 5, "x-quorum-initial-group-size": 3},
        {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-queue-leader-locator": "balanced"},
        {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 10_000_000},
        {"x-queue-mode": "lazy", "x-expires": 60_000, "x-message-ttl": 1000, "x-max-priority": 10},
        {"x-single-active-consumer": True, "x-queue-master-locator": "min-masters", "x-max-length": 10},
    ]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for number, arguments in enumerate(queues):
            for _ in range(2):
                channel.queue_declare(f"{name}.{number}", durable=True, arguments=arguments)
