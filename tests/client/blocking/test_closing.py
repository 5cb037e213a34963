"""`kvitto.connect_sync` when it is closed: beside calls, in callbacks, by Ctrl-C, and with messages that could not be sent."""

import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import kvitto
from kvitto.client import ConnectionLost
from kvitto.client.aio import Closed, Event, ManyFailed, PublishFailed
from kvitto.client.blocking import SyncConnection
from kvitto.client.blocking.loop import Loop
from tests.support.wait import wait_until

LIMIT_S = 30.0
"""What is expected at once has to come within this time."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a close not wait long for what is not sent."""
    for module in ("outbox", "channel"):
        monkeypatch.setattr(f"kvitto.client.blocking.{module}.CLOSE_TIMEOUT_S", 0.1)


def lose(connection: SyncConnection) -> None:
    """Lose the TCP connection, in the client's thread."""

    def fail() -> None:
        link = connection._connection._link
        assert link is not None
        link.fail(ConnectionLost("cut by the test"))

    connection._loop.soon(fail)


def in_thread(work: Callable[[], object]) -> Future[object]:
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is looked at
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def no_threads() -> bool:
    """Whether all clients' threads come to their end."""
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "kvitto-client"])
    return True


def calls_of(connection: SyncConnection) -> list[Callable[[], object]]:
    channel, plain = connection.channel(), connection.channel(confirms=False)
    channel.queue("q", durable=True)
    return [
        lambda: channel.publish(b"x", "q"),
        lambda: channel.publish_many([b"x"] * 10, "q"),
        lambda: plain.publish(b"x", "q"),
        plain.flush,
        lambda: channel.queue("q", durable=True).get(no_ack=True),
        connection.channel,
    ]


def until_it_fails(call: Callable[[], object], begun: threading.Barrier) -> None:
    begun.wait()
    while True:
        call()


def test_close_beside_calls_of_other_threads_ends_them_all(kvitto_broker: kvitto.Broker) -> None:
    for _ in range(8):
        connection = kvitto.connect_sync(kvitto_broker.url)
        calls = calls_of(connection)
        begun = threading.Barrier(len(calls) + 1)
        with ThreadPoolExecutor(len(calls)) as pool:
            running = [pool.submit(until_it_fails, call, begun) for call in calls]
            begun.wait()
            connection.close()
            for each in running:
                error = each.exception(LIMIT_S)
                if isinstance(error, ManyFailed):
                    error = error.failed[0][1].__cause__
                assert isinstance(error, Closed | PublishFailed), error
    assert no_threads()


@pytest.mark.parametrize("after", ["event", "other threads"])
def test_close_in_on_event_ends_the_connection(kvitto_broker: kvitto.Broker, after: str) -> None:
    told: list[BaseException | None] = []
    closed = threading.Event()

    def on_event(event: Event) -> None:
        try:
            connection.close()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            told.append(error)
        closed.set()

    connection = kvitto.connect_sync(kvitto_broker.url, on_event=on_event)
    channel = connection.channel()
    queue = channel.queue("q", durable=True)
    waiting = in_thread(lambda: next(queue.consume()))
    wait_until(lambda: channel.queue("q", durable=True).consumer_count)
    lose(connection)
    if after == "event":
        assert closed.wait(LIMIT_S)
    else:
        declaring = in_thread(lambda: [channel.queue("q", durable=True) for _ in itertools.count()])
        assert isinstance(declaring.exception(LIMIT_S), Closed | ConnectionLost)
    assert isinstance(waiting.exception(LIMIT_S), Closed)
    connection.close()
    assert not told and no_threads()


def test_calls_that_would_wait_for_themselves_are_refused(kvitto_broker: kvitto.Broker) -> None:
    found: list[str] = []
    done = threading.Event()

    def on_event(event: Event) -> None:
        plain.publish(b"from the callback", "q")  # which does not wait
        for call in (
            lambda: channel.publish(b"x", "q"),
            lambda: channel.publish_many([b"x"], "q"),
            plain.flush,
            plain.close,
            lambda: next(queue.consume()),
        ):
            try:
                call()
            except RuntimeError as error:
                found.append(str(error))
        done.set()

    with kvitto.connect_sync(kvitto_broker.url, on_event=on_event) as connection:
        channel, plain = connection.channel(), connection.channel(confirms=False)
        queue = channel.queue("q", durable=True)
        lose(connection)
        assert done.wait(LIMIT_S)
        assert len(found) == 5 and all("client's own thread" in each for each in found)
        assert wait_until(queue.get).body == b"from the callback"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the socket is not closed in order
def test_a_callback_that_exits_ends_what_waits(kvitto_broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python itself ignores this exit. pytest would keep it, and with it all that the thread had.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    exit_in_a_callback(kvitto_broker)
    gc.collect()  # else a later test would be blamed for the socket


def exit_in_a_callback(kvitto_broker: kvitto.Broker) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url, on_event=lambda event: sys.exit())
    channel, plain = connection.channel(), connection.channel(confirms=False)
    queue = channel.queue("q", durable=True)
    waiting = in_thread(lambda: next(queue.consume()))
    wait_until(lambda: channel.queue("q", durable=True).consumer_count)
    lose(connection)
    assert isinstance(waiting.exception(LIMIT_S), Closed)
    calls: list[Callable[[], object]] = [
        lambda: channel.publish(b"x", "q"),
        lambda: plain.publish(b"x", "q"),
        plain.flush,
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    connection.close()
    assert no_threads()


@pytest.mark.usefixtures("short")
def test_a_close_tells_what_was_not_sent(kvitto_broker: kvitto.Broker, caplog: pytest.LogCaptureFixture) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url)
    first, second, third = (connection.channel(confirms=False) for _ in range(3))
    kvitto_broker.stop()
    wait_until(lambda: not connection.connected)
    for channel in (first, second, third):
        for _ in range(5):
            channel.publish(b"x", "q")
    with pytest.raises(TimeoutError, match="5 messages are not sent yet"):
        first.flush(0.01)
    with pytest.raises(PublishFailed, match=r"^5 messages .* not sent"):
        first.close()
    with pytest.raises(ZeroDivisionError), second:
        raise ZeroDivisionError
    assert "5 messages" in caplog.records[-1].message
    second.close()
    with pytest.raises(PublishFailed, match=r"^5 messages .* not sent"), connection:
        pass
    connection.close()
    with pytest.raises(Closed):
        first.publish(b"x", "q")


@pytest.mark.usefixtures("short", "no_pauses")
def test_a_close_in_on_event_logs_what_was_not_sent(
    kvitto_broker: kvitto.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    published = threading.Event()

    def on_event(event: Event) -> None:
        if published.is_set():
            connection.close()

    connection = kvitto.connect_sync(kvitto_broker.url, on_event=on_event)
    channel = connection.channel(confirms=False)
    kvitto_broker.stop()
    wait_until(lambda: not connection.connected)
    for _ in range(3):
        channel.publish(b"x", "q")
    published.set()  # the next attempt to connect fails, too
    connection._loop.join()
    assert "3 messages that were published" in caplog.text and no_threads()


def test_an_error_that_nobody_was_told_is_raised_by_the_close(kvitto_broker: kvitto.Broker) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url)
    channel = connection.channel(confirms=False)
    channel.publish(b"x", "k" * 300)
    with pytest.raises(ValueError, match="255 bytes"):
        channel.close()
    with pytest.raises(Closed):
        channel.queue("q")  # it is closed all the same
    other = connection.channel(confirms=False)
    other.publish(b"x", "k" * 300)
    with pytest.raises(ValueError, match="255 bytes"):
        connection.close()
    connection.close()
    assert no_threads()


def test_a_message_that_cannot_be_sent_does_not_keep_others_from_it(kvitto_broker: kvitto.Broker) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel(confirms=False) as channel:
        queue = channel.queue("q", durable=True)
        wrong: Any = "not bytes"

        def publish_all() -> None:
            for body in (b"1", wrong, b"2"):
                channel.publish(body, "q")

        connection._loop.loop.call_soon_threadsafe(publish_all)  # so all of them wait at once
        assert wait_until(queue.get).body == b"1"
        assert wait_until(queue.get).body == b"2"
        with pytest.raises(TypeError):
            channel.flush()


def test_an_interrupted_close_still_closes(kvitto_broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url)
    channel = connection.channel(confirms=False)
    kvitto_broker.stop()
    wait_until(lambda: not connection.connected)
    channel.publish(b"x", "q")
    joins = itertools.count()
    join = Loop.join

    def interrupted(loop: Loop) -> None:
        if next(joins) == 0:
            raise KeyboardInterrupt
        join(loop)

    monkeypatch.setattr(Loop, "join", interrupted)
    monkeypatch.setattr("kvitto.client.blocking.outbox.CLOSE_TIMEOUT_S", LIMIT_S * 1000)  # it does not wait for that
    with pytest.raises(KeyboardInterrupt):
        connection.close()
    assert connection._connection.closed is not None and connection.unsent is not None
    assert no_threads()


def test_an_interrupted_stream_leaves_no_gap(kvitto_broker: kvitto.Broker) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)

        def source() -> Iterator[bytes]:
            for n in range(10_000):
                yield b"%d" % n
            raise KeyboardInterrupt

        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                channel.publish_many(source(), "q")
            channel.publish(b"end", "q")
            with queue.consume(no_ack=True) as consumer:
                bodies = list(itertools.takewhile(lambda body: body != b"end", (each.body for each in consumer)))
            assert bodies == [b"%d" % n for n in range(len(bodies))]


def test_two_threads_that_close_both_return_when_it_is_closed(kvitto_broker: kvitto.Broker) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url)
    connection.channel()
    closing = [in_thread(connection.close) for _ in range(4)]
    for each in closing:
        assert each.result(LIMIT_S) is None
    assert no_threads()
