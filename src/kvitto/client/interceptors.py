"""Ready-made interceptors that need nothing but Python: `Logging` and `Metrics`. That for OpenTelemetry is in
`kvitto.client.opentelemetry`.

One of them may serve any number of connections, of both faces of the client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvitto.client.aio.errors import ManyFailed
from kvitto.client.intercept import Interceptor

if TYPE_CHECKING:
    from kvitto.client.aio.core import IncomingMessage
    from kvitto.client.aio.message import Message


class Logging(Interceptor):
    """Writes a line for each publish and each message that was handled, without its body: at `level`, or as a warning if it
    has failed."""

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.DEBUG) -> None:
        self.logger = logger or logging.getLogger("kvitto.client.messages")
        self.level = level

    @contextmanager
    def publish(self, message: Message) -> Iterator[None]:
        with self._line(f"publish of {len(message.body)} bytes to {_place(message.exchange, message.routing_key)}"):
            yield

    @contextmanager
    def publish_many(self, exchange: str, routing_key: str) -> Iterator[Callable[[Message], object]]:
        note = _Count()
        with self._line(lambda: f"publish of {note.messages} messages to {_place(exchange, routing_key)}"):
            yield note

    @contextmanager
    def handle(self, message: IncomingMessage, queue: str) -> Iterator[None]:
        again = ", redelivered" if message.redelivered else ""
        with self._line(f"handling of message {message.delivery_tag} of queue {queue!r}{again}"):
            yield

    @contextmanager
    def _line(self, what: str | Callable[[], str]) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except BaseException as error:
            self._write(logging.WARNING, what, started, f"failed: {type(error).__name__}: {error}")
            raise
        self._write(self.level, what, started, "done")

    def _write(self, level: int, what: str | Callable[[], str], started: float, outcome: str) -> None:
        if self.logger.isEnabledFor(level):
            text = what if isinstance(what, str) else what()
            self.logger.log(level, "%s %s in %.1f ms", text, outcome, (time.perf_counter() - started) * 1000)


class _Count:
    """Counts the messages of one `publish_many`."""

    def __init__(self) -> None:
        self.messages = 0

    def __call__(self, message: Message) -> None:
        self.messages += 1


def _place(exchange: str, routing_key: str) -> str:
    if not exchange:
        return f"queue {routing_key!r}" if routing_key else "the queues that they name"
    return f"exchange {exchange!r} with key {routing_key!r}"


@dataclass
class Counted:
    """What `Metrics` has counted of one kind of work."""

    done: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """How many have failed, by the class of the exception."""
    under_way: int = 0
    seconds: float = 0.0
    """The time that all of them have taken, those that have failed too."""
    seconds_max: float = 0.0


class Metrics(Interceptor):
    """Counts and times, to be read at any time and by any thread:

    - `published`: publishes, each until its confirm, and RPC calls until their answers.
    - `streamed`: messages of `publish_many`. `under_way` and the times are those of the calls, not of the messages.
    - `handled`: messages, each from the beginning of its block to its end.
    """

    def __init__(self) -> None:
        self.published = Counted()
        self.streamed = Counted()
        self.handled = Counted()
        self._lock = threading.Lock()

    @contextmanager
    def publish(self, message: Message) -> Iterator[None]:
        with self._counted(self.published):
            yield

    @contextmanager
    def handle(self, message: IncomingMessage, queue: str) -> Iterator[None]:
        with self._counted(self.handled):
            yield

    @contextmanager
    def publish_many(self, exchange: str, routing_key: str) -> Iterator[Callable[[Message], object]]:
        note = _Count()
        started = self._start(self.streamed)
        failed: Counter[str] = Counter()
        try:
            yield note
        except ManyFailed as error:
            failed.update(type(each).__name__ for _, each in error.failed)
            raise
        except BaseException as error:
            failed[type(error).__name__] = note.messages
            raise
        finally:
            self._end(self.streamed, started, note.messages - failed.total(), failed)

    @contextmanager
    def _counted(self, counted: Counted) -> Iterator[None]:
        started = self._start(counted)
        failed: Counter[str] = Counter()
        try:
            yield
        except BaseException as error:
            failed[type(error).__name__] = 1
            raise
        finally:
            self._end(counted, started, 1 - failed.total(), failed)

    def _start(self, counted: Counted) -> float:
        with self._lock:
            counted.under_way += 1
        return time.perf_counter()

    def _end(self, counted: Counted, started: float, done: int, failed: Counter[str]) -> None:
        seconds = time.perf_counter() - started
        with self._lock:
            counted.under_way -= 1
            counted.done += done
            counted.failed += failed
            counted.seconds += seconds
            counted.seconds_max = max(counted.seconds_max, seconds)
