"""What a thread gets that publishes with a confirm: limits, interrupts, arguments that do not fit, a lost connection."""

import asyncio
import gc
import itertools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

import kvitto
from kvitto.client import AMQPError
from kvitto.client.aio import Closed, PublishFailed, Returned
from kvitto.client.blocking import SyncChannel, SyncConnection
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.messages import settle
from kvitto.client.blocking.outbox import TURN
from kvitto.client.blocking.queue import SyncQueue
from kvitto.client.blocking.receipt import Receipt
from tests.client.blocking.test_closing import in_thread, lose, no_threads
from tests.support.wait import wait_until

LIMIT_S = 30.0
"""What is expected at once has to come within this time."""


@contextmanager
def held(connection: SyncConnection) -> Iterator[None]:
    """Keep the client's thread from working meanwhile."""
    holding, free = threading.Event(), threading.Event()
    connection._loop.soon(lambda: (holding.set(), free.wait()))
    holding.wait()
    try:
        yield
    finally:
        free.set()


@contextmanager
def unsent(connection: SyncConnection) -> Iterator[None]:
    """Let the client send nothing meanwhile; what it has written is sent at the end."""
    link = connection._connection._link
    assert link is not None
    flush, link.core.flush = link.core.flush, lambda: None
    try:
        yield
    finally:
        link.core.flush = flush
        connection._loop.soon(flush)


async def nothing() -> None:
    """The last work of a loop."""


def bodies(queue: SyncQueue) -> list[bytes]:
    """Take all messages that are in a queue."""
    return [message.body for message in iter(lambda: queue.get(no_ack=True), None)]


def test_arguments_that_do_not_fit_are_refused_and_the_channel_goes_on(kvitto_broker: kvitto.Broker) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        calls: list[tuple[type[Exception], Callable[[Any], None]]] = [
            (TypeError, lambda c: c.publish("text", "q")),
            (ValueError, lambda c: c.publish(b"x", "k" * 300)),
            (TypeError, lambda c: c.publish(b"x", "q", colour="red")),
            (ValueError, lambda c: c.publish(b"x", "q", priority=300)),
            (Returned, lambda c: c.publish(b"x", "nowhere", mandatory=True)),
        ]
        for error, call in calls:
            with pytest.raises(error):
                call(channel)
            channel.publish(b"right", "q")
        assert queue.purge() == len(calls)


def test_a_message_that_is_not_on_its_way_at_the_limit_is_not_sent(kvitto_broker: kvitto.Broker) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        channel.publish(b"first", "q")
        with held(connection), pytest.raises(TimeoutError, match=r"within 0\.01 s"):
            channel.publish(b"late", "q", timeout_s=0.01)
        channel.publish(b"last", "q")
        assert bodies(queue) == [b"first", b"last"]
        assert not connection._loop._receipts


def test_a_message_that_is_on_its_way_at_the_limit_is_confirmed_to_nobody(kvitto_broker: kvitto.Broker) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        channel.publish(b"first", "q")
        core = channel._channel._core
        assert core is not None
        with unsent(connection):
            written = core.next
            receipt: Receipt[None] = Receipt()
            connection._loop.hand_over(lambda: channel._send(b"late", "q", "", False, {}, receipt), receipt)
            wait_until(lambda: core.next > written)
            with pytest.raises(TimeoutError):
                receipt.wait(0.0)
            receipt.abandon()
        channel.publish(b"last", "q")
        assert bodies(queue) == [b"first", b"late", b"last"]


def test_ctrl_c_ends_the_wait(kvitto_broker: kvitto.Broker) -> None:
    main = threading.main_thread()
    assert threading.current_thread() is main and main.ident is not None
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
            queue = channel.queue("q", durable=True)
            receipts = connection._loop._receipts

            def kill() -> None:
                wait_until(lambda: receipts)
                signal.pthread_kill(main.ident, signal.SIGUSR1)  # type: ignore[arg-type]

            for _ in range(5):
                with held(connection):
                    killing = in_thread(kill)
                    with pytest.raises(KeyboardInterrupt):
                        channel.publish(b"interrupted", "q", timeout_s=LIMIT_S)
                    killing.result(LIMIT_S)
                channel.publish(b"right", "q", timeout_s=LIMIT_S)
            assert queue.purge() == 5
    finally:
        signal.signal(signal.SIGUSR1, before)


def at_line(number: int, call: Callable[[], object], action: Callable[[], object]) -> bool:
    """Make a call, and do something at the line of it with this number, counted in the client and the modules that it uses for threads.

    Return False if the call has fewer lines.

    A line that a frame comes to again does not count: it may be the end of a `with` block, between which and the call of `__exit__` Python
    handles no signal.
    """
    files = (f"blocking{os.sep}", f"asyncio{os.sep}", f"concurrent{os.sep}", "threading.py")
    count = 0
    seen: set[tuple[FrameType, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not any(each in frame.f_code.co_filename for each in files):
            return None
        if event == "line" and (frame, frame.f_lineno) not in seen:
            seen.add((frame, frame.f_lineno))
            count += 1
            if count == number:
                sys.settrace(None)
                action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        seen.clear()  # a frame that is kept would keep what the call has used
    return count >= number


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def rolled_back(channel: SyncChannel) -> None:
    """Publish more in a transaction than the loop sends in one turn, and give up."""
    with suppress(LookupError), channel.transaction():
        for _ in range(TURN + 10):
            channel.publish(b"rolled back", "q", timeout_s=LIMIT_S)
        raise LookupError


def transact(channel: SyncChannel) -> None:
    """Publish two messages in a transaction."""
    with channel.transaction():
        channel.publish(b"half", "q", timeout_s=LIMIT_S)
        channel.publish(b"half", "q", timeout_s=LIMIT_S)


def fail_to_transact(channel: SyncChannel) -> None:
    """Publish a message in a transaction, and another one that cannot be sent."""
    with suppress(ValueError), channel.transaction():
        channel.publish(b"half", "q", timeout_s=LIMIT_S)
        channel.publish(b"half", "k" * 300, timeout_s=LIMIT_S)


CALLS: dict[str, tuple[bool, Callable[[SyncChannel], object]]] = {
    "publish": (True, lambda channel: channel.publish(b"x", "q", timeout_s=LIMIT_S)),
    "publish without confirms": (False, lambda channel: channel.publish(b"x", "q", timeout_s=LIMIT_S)),
    "flush": (False, lambda channel: (channel.publish(b"x", "q"), channel.flush(LIMIT_S))),
    "publish_many": (True, lambda channel: channel.publish_many([b"x"] * 3, "q")),
    "queue": (True, lambda channel: channel.queue("q", durable=True)),
    "queue behind messages": (False, lambda channel: (channel.publish(b"x", "q"), channel.queue("q", durable=True))),
    "commit_stages with a limit": (True, lambda channel: channel.commit_stages("w", 1, [], timeout_s=LIMIT_S)),
    "get and ack": (True, lambda channel: take(channel.queue("q", durable=True))),
    "transaction": (False, transact),
}
"""For each kind of call whether it needs a channel with confirms, and the call."""


def take(queue: SyncQueue) -> None:
    message = queue.get()
    if message is not None:
        message.ack()


INSIDE: dict[str, Callable[[SyncChannel, SyncChannel], object]] = {
    "interrupted": interrupt,
    "publish": lambda sure, plain: sure.publish(b"x", "q", timeout_s=LIMIT_S),
    "publish without confirms": lambda sure, plain: plain.publish(b"x", "q", timeout_s=LIMIT_S),
    "flush": lambda sure, plain: plain.flush(LIMIT_S),
    "queue": lambda sure, plain: plain.queue("q", durable=True),
    "close of a channel": lambda sure, plain: plain.close(),
}
"""What a signal handler does."""


# an interrupt may come between the making of a coroutine and its hand-over: then Python warns that it was never awaited
@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("inside", INSIDE)
def test_a_signal_at_any_line_leaves_the_connection_usable(
    kvitto_broker: kvitto.Broker, kind: str, inside: str
) -> None:
    confirms, call = CALLS[kind]
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as sure:
        sure.queue("q", durable=True)
        number, reached = 1, True
        channel = plain = connection.channel(confirms=confirms)
        while reached:
            if confirms or kind == "transaction" or inside == "close of a channel":
                plain = connection.channel(confirms=False)
            handle = partial(INSIDE[inside], sure, plain)
            reached = at_line(number, lambda: call(channel), handle)
            call(channel)
            sure.publish(b"x", "q", timeout_s=LIMIT_S)
            number += 1
        assert number > 20
        assert all(receipt.done() for receipt in connection._loop._receipts)
    gc.collect()  # what warns does it here, and not in another test


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", CALLS)
def test_a_signal_handler_closes_the_connection_at_any_line(kvitto_broker: kvitto.Broker, kind: str) -> None:
    confirms, call = CALLS[kind]
    number, reached = 1, True
    while reached:
        connection = kvitto.connect_sync(kvitto_broker.url)
        channel = connection.channel(confirms=confirms)
        with suppress(Closed, PublishFailed):
            reached = at_line(number, lambda: call(channel), connection.close)  # noqa: B023 - it is called here
        assert connection._loop._done or not reached
        connection.close()
        with pytest.raises(Closed):
            call(channel)
        assert no_threads()
        number += 1
    assert number > 20
    gc.collect()  # what warns does it here, and not in another test


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("again", [False, True], ids=["interrupted", "closed again"])
def test_a_signal_at_any_line_of_a_close(kvitto_broker: kvitto.Broker, again: bool) -> None:
    number, reached = 1, True
    while reached:
        connection = kvitto.connect_sync(kvitto_broker.url)
        plain = connection.channel(confirms=False)
        plain.publish(b"x", "q")
        with suppress(PublishFailed):
            reached = at_line(number, connection.close, connection.close if again else interrupt)
        connection.close()
        assert no_threads()
        number += 1
    assert number > 10
    gc.collect()


@pytest.mark.parametrize("kind", CALLS)
def test_a_child_that_is_forked_at_any_line_of_a_call_does_not_wait(kvitto_broker: kvitto.Broker, kind: str) -> None:
    confirms, call = CALLS[kind]
    with kvitto.connect_sync(kvitto_broker.url) as connection:
        channel = connection.channel(confirms=confirms)
        channel.queue("q", durable=True)
        number, reached, parent = 1, True, os.getpid()
        children: list[int] = []

        def fork() -> None:
            child = os.fork()
            if child:
                children.append(child)
            else:
                signal.alarm(int(LIMIT_S))  # which ends the child

        while reached:
            try:
                reached = at_line(number, lambda: call(channel), fork)
            except Closed:
                pass
            finally:
                if os.getpid() != parent:
                    os._exit(0)
            for child in children:
                assert os.waitpid(child, 0)[1] == 0
            children.clear()
            call(channel)
            number += 1
        assert number > 20


def test_what_was_published_on_a_channel_goes_before_its_other_methods(kvitto_broker: kvitto.Broker) -> None:
    many = 4 * TURN
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel(confirms=False) as plain:
        queue = plain.queue("q", durable=True)
        calls: list[Callable[[], int]] = [
            lambda: plain.queue("q", passive=True).message_count,
            queue.purge,
            lambda: plain.publish_many([], "q") or queue.purge(),
        ]
        for call in calls:
            for _ in range(many):
                plain.publish(b"x", "q")
            assert call() == many
            queue.purge()


@pytest.mark.parametrize("whole", [False, True], ids=["channel", "connection"])
def test_at_a_close_each_message_has_been_sent_or_is_counted(kvitto_broker: kvitto.Broker, whole: bool) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as other, other.channel() as sure:
        queue = sure.queue("q", durable=True)
        for number in range(8):
            connection = kvitto.connect_sync(kvitto_broker.url)
            plain = connection.channel(confirms=False)

            def publish() -> int:
                for count in itertools.count():
                    try:
                        plain.publish(b"x", "q")  # noqa: B023 - it ends in this round
                    except Closed:
                        return count
                raise AssertionError

            threads = [in_thread(publish) for _ in range(3)]
            wait_until(lambda: queue_is_used(sure))
            unsent = 0
            try:
                (connection if whole else plain).close()
            except PublishFailed as error:
                unsent = int(str(error).split()[0])
            counts: list[Any] = [each.result(LIMIT_S) for each in threads]
            returned = sum(counts)
            connection.close()
            assert not connection._outboxes.sending and not connection._outboxes.failed
            assert queue.purge() + unsent == returned, number


@pytest.mark.parametrize("whole", [False, True], ids=["channel", "connection"])
def test_a_publish_that_is_interrupted_by_a_close_is_sent_or_counted_or_raises_closed(
    kvitto_broker: kvitto.Broker, whole: bool
) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as other, other.channel() as sure:
        queue = sure.queue("q", durable=True)
        number, reached = 1, True
        while reached:
            connection = kvitto.connect_sync(kvitto_broker.url)
            plain = connection.channel(confirms=False)
            counts = Counter[str]()

            def close() -> None:
                try:
                    (connection if whole else plain).close()  # noqa: B023 - it is called in this round
                except PublishFailed as error:
                    counts["unsent"] += int(str(error).split()[0])  # noqa: B023

            def publish() -> None:
                for _ in range(3):
                    plain.publish(b"x", "q")  # noqa: B023
                    counts["returned"] += 1  # noqa: B023

            with suppress(Closed):
                reached = at_line(number, publish, close)
            connection.close()
            assert queue.purge() + counts["unsent"] == counts["returned"], number
            number += 1
        assert number > 20


def queue_is_used(channel: SyncChannel) -> bool:
    return channel.queue("q", passive=True).message_count > 0


def test_a_transaction_has_all_that_was_published_in_it(kvitto_broker: kvitto.Broker) -> None:
    many = 4 * TURN
    with (
        kvitto.connect_sync(kvitto_broker.url) as connection,
        connection.channel(confirms=False) as channel,
        connection.channel() as other,
    ):
        queue = other.queue("q", durable=True)
        for _ in range(3):
            with channel.transaction():
                for _ in range(many):
                    channel.publish(b"x", "q")
            assert queue.purge() == many
            rolled_back(channel)
        with pytest.raises(ValueError, match="routing key"), channel.transaction():  # noqa: PT012 - the block's end raises it
            for _ in range(many):
                channel.publish(b"x", "q")
            channel.publish(b"x", "k" * 300)
        assert queue.purge() == 0
        with channel.transaction():
            channel.publish(b"x", "q")
        assert queue.purge() == 1


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fails", [False, True], ids=["committed", "rolled back"])
def test_a_transaction_that_is_interrupted_at_any_line_is_whole(kvitto_broker: kvitto.Broker, fails: bool) -> None:
    with (
        kvitto.connect_sync(kvitto_broker.url) as connection,
        connection.channel(confirms=False) as channel,
        connection.channel() as other,
    ):
        queue = other.queue("q", durable=True)
        number, reached = 1, True
        while reached:
            reached = at_line(number, lambda: fail_to_transact(channel) if fails else transact(channel), interrupt)
            assert queue.purge() in ((0,) if fails else (0, 2)), number
            transact(channel)  # it is not refused, and it has nothing of the one before
            assert queue.purge() == 2, number
            number += 1
        assert number > 20
        assert not connection._outboxes.failed
    gc.collect()


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_handler_may_publish_on_the_channel_of_a_transaction(kvitto_broker: kvitto.Broker) -> None:
    """What it publishes before the commit belongs to the transaction, what it publishes later is refused, and nothing to the next one."""
    many = 2 * TURN + 1

    def more() -> None:
        for _ in range(many):
            channel.publish(b"more", "q")

    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as other:
        queue = other.queue("q", durable=True)
        number, reached = 1, True
        while reached:
            channel = connection.channel(confirms=False)
            transact(channel)
            queue.purge()
            refused = False
            try:
                reached = at_line(number, lambda: transact(channel), more)  # noqa: B023
            except AMQPError:
                refused = True
            count = queue.purge()
            try:
                channel.flush()
            except AMQPError:
                refused = True
            assert count == 2 + many or refused or not reached, (number, count)
            transact(channel)
            assert queue.purge() == 2, number
            channel.close()
            number += 1
        assert number > 20
    gc.collect()


def test_a_transaction_is_used_once_and_may_decorate(kvitto_broker: kvitto.Broker) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel(confirms=False) as channel:
        queue = channel.queue("q", durable=True)
        transaction = channel.transaction()
        with transaction:
            channel.publish(b"x", "q")
            with pytest.raises(RuntimeError, match="used once"), transaction:
                pass
            channel.publish(b"x", "q")
        transaction.__exit__(None, None, None)
        channel.transaction().__exit__(None, None, None)  # which nobody has entered

        @channel.transaction()
        def publish() -> None:
            channel.publish(b"x", "q")

        publish()
        publish()
        assert queue.purge() == 4


def test_a_task_that_goes_on_when_it_is_cancelled_does_not_keep_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitto.client.blocking.loop.END_S", 0.01)

    async def stubborn() -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    loop = Loop()
    receipt = loop.begin(stubborn)
    loop.end(nothing)
    loop.join()
    assert receipt.done() and no_threads()


def test_a_transaction_in_a_transaction_is_refused_and_leaves_it_alone(kvitto_broker: kvitto.Broker) -> None:
    with (
        kvitto.connect_sync(kvitto_broker.url) as connection,
        connection.channel(confirms=False) as channel,
        connection.channel() as other,
    ):
        queue = other.queue("q", durable=True)
        with channel.transaction():
            channel.publish(b"x", "q")
            with pytest.raises(kvitto.client.AMQPError, match="under way"), channel.transaction():
                pass
            for _ in range(4 * TURN):
                channel.publish(b"x", "q")
            with pytest.raises(kvitto.client.AMQPError, match="under way"), channel.transaction():
                pass
            channel.publish(b"x", "q")
        assert queue.purge() == 4 * TURN + 2
        other.publish(b"x", "q")
        with pytest.raises(kvitto.client.AMQPError, match="has confirms"), other.transaction():
            pass
        channel.transaction()  # which nobody begins
        transact(channel)
        assert queue.purge() == 3


def test_a_thread_that_forks_in_a_signal_handler_waits_no_more_in_the_child() -> None:
    loop = Loop()
    receipt: Receipt[None] = Receipt()
    loop.hand_over(lambda: None, receipt)
    loop.disown()  # as in a child
    with pytest.raises(Closed):
        receipt.wait(LIMIT_S)
    loop._disowned = False
    loop.end(nothing)
    loop.join()


def test_a_call_that_fails_does_not_keep_others_from_their_turn(kvitto_broker: kvitto.Broker, caplog: Any) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        with held(connection):
            connection._loop.hand_over(lambda: 1 // 0)
            waiting = in_thread(lambda: channel.publish(b"x", "q", timeout_s=LIMIT_S))
            wait_until(lambda: connection._loop._receipts)
        waiting.result(LIMIT_S)
    assert "what a thread has handed over has failed" in caplog.text


def test_what_was_published_without_confirms_goes_first(kvitto_broker: kvitto.Broker) -> None:
    with (
        kvitto.connect_sync(kvitto_broker.url) as connection,
        connection.channel() as channel,
        connection.channel(confirms=False) as plain,
    ):
        queue = channel.queue("q", durable=True)
        for _ in range(100):
            plain.publish(b"first", "q")
            channel.publish(b"second", "q")
        assert bodies(queue) == [b"first", b"second"] * 100
        for _ in range(4 * TURN):
            plain.publish(b"first", "q")
        channel.publish(b"second", "q")
        assert bodies(queue) == [b"first"] * 4 * TURN + [b"second"]


def test_acks_go_before_what_is_published_behind_them(kvitto_broker: kvitto.Broker) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        channel.publish(b"work", "q")
        message = queue.get()
        assert message is not None
        order: list[str] = []
        core = channel._channel._core
        assert core is not None
        with held(connection):
            connection._loop.hand_over(lambda: order.append("other"))  # another thread has asked the loop already
            settle(connection._loop, lambda: order.append("ack"))
            waiting = in_thread(lambda: channel.publish(b"result", "q", timeout_s=LIMIT_S))
            wait_until(lambda: connection._loop._receipts)
            connection._loop.hand_over(lambda: order.append("behind"))
        waiting.result(LIMIT_S)
        assert order == ["other", "ack", "behind"]


def test_a_close_ends_what_waits_in_the_hands_of_the_loop(kvitto_broker: kvitto.Broker) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url)
    channel = connection.channel()
    channel.publish(b"x", "q")
    with held(connection):
        waiting = [in_thread(lambda: channel.publish(b"x", "q")) for _ in range(4)]
        wait_until(lambda: len(connection._loop._receipts) == 4)
        closing = in_thread(connection.close)
        wait_until(lambda: connection._loop.ended)
    closing.result(LIMIT_S)
    for each in waiting:  # it was taken before the close, so its confirm may have come, too
        assert isinstance(each.exception(LIMIT_S), kvitto.client.AMQPError | None)


def test_whoever_is_forgotten_by_all_gets_closed(kvitto_broker: kvitto.Broker) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url)
    receipt: Receipt[None] = Receipt()
    connection._loop.hand_over(lambda: None, receipt)  # nothing will ever give it an outcome
    connection.close()
    with pytest.raises(Closed):
        receipt.wait(LIMIT_S)


def test_what_is_taken_together_is_sent_once() -> None:
    loop = Loop()
    taken: list[int] = []
    sent: list[list[int]] = []
    holding, free = threading.Event(), threading.Event()
    loop.soon(lambda: (holding.set(), free.wait()))
    holding.wait()

    def send() -> None:
        sent.append(list(taken))

    def call(number: int) -> None:
        taken.append(number)
        loop.behind(send)

    for number in range(5):
        loop.hand_over(partial(call, number))
    free.set()
    wait_until(lambda: sent)
    loop.end(nothing)
    loop.join()
    assert sent == [[0, 1, 2, 3, 4]]


def test_messages_wait_for_a_connection_that_is_lost(
    kvitto_broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[object] = []
    follow = Receipt.follow
    monkeypatch.setattr(Receipt, "follow", lambda self, task: (tasks.append(task), follow(self, task)))
    with kvitto.connect_sync(kvitto_broker.url, on_unconfirmed="resend") as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        channel.publish(b"first", "q")

        def publish(thread: int) -> None:
            for n in range(30):
                channel.publish(b"%d-%d" % (thread, n), "q", timeout_s=LIMIT_S)

        with held(connection):
            lose(connection)
            threads = [in_thread(partial(publish, thread)) for thread in range(3)]
            wait_until(lambda: len(connection._loop._receipts) == 3)
        for _ in range(10):
            wait_until(lambda: connection.connected)
            lose(connection)
        for each in threads:
            each.result(LIMIT_S)
        assert set(bodies(queue)) == {b"first"} | {b"%d-%d" % (thread, n) for thread in range(3) for n in range(30)}
    assert len(tasks) >= 3
