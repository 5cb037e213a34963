"""Interceptors: code of a program that runs around each publish and around the handling of each message.

`kvitto.connect(interceptors=[...])` takes them. Nothing here runs on a connection without them: channels and messages of
those with interceptors have classes of their own (`aio.intercepted`, `blocking.intercepted`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kvitto.client.aio.message import Fields, Message, new_id
from kvitto.wire.properties import FIELDS

if TYPE_CHECKING:
    from kvitto.client.aio.core import IncomingMessage

T = TypeVar("T")


class Interceptor:
    """Base of all interceptors. Override what you need; each method returns a context manager, so `contextlib.contextmanager`
    on a generator is the usual way.

    The first interceptor of the list is the outermost. What happens inside is raised at `yield`; it goes on to the caller
    whatever the block does with it. An exception of the interceptor itself goes to the caller, too.
    """

    def publish(self, message: Message) -> AbstractContextManager[object]:
        """Around one publish, until its confirm. The block may change the message before it is sent: its headers, other
        properties, body, routing key. An RPC call is a publish that ends with the answer."""
        return nullcontext()

    def publish_many(self, exchange: str, routing_key: str) -> AbstractContextManager[Callable[[Message], object]]:
        """Around one call of `publish_many`, which has these arguments. The value of the block is called with each message
        before it is sent. By default each goes through `publish`, whose block ends before the message is sent."""
        return nullcontext(self._pass)

    def _pass(self, message: Message) -> None:
        with self.publish(message):
            pass

    def handle(self, message: IncomingMessage, queue: str) -> AbstractContextManager[object]:
        """Around the block `async with message:` or `message.process()`, until the message is settled."""
        return nullcontext()


def enter(managers: Iterable[AbstractContextManager[T]]) -> tuple[ExitStack, list[T]]:
    """Enter all of these, and return how to leave them, and their values. None of them can hide an exception: a publish that
    failed must not look like one that did not."""
    with ExitStack() as stack:
        values = []
        for manager in managers:
            values.append(manager.__enter__())
            stack.push(partial(_leave, manager))
        return stack.pop_all(), values


def _leave(manager: AbstractContextManager[object], *failure: object) -> None:
    manager.__exit__(*failure)  # type: ignore[arg-type]  # as ExitStack gives it


def publishing(interceptors: Iterable[Interceptor], message: Message) -> ExitStack:
    """Enter the blocks of one publish, and return how to leave them."""
    return enter(interceptor.publish(message) for interceptor in interceptors)[0]


def outgoing(body: bytes, routing_key: str, exchange: str, given: Fields) -> Message:
    """Return what interceptors may change of a publish. The dict of headers is a copy of the program's."""
    if "headers" in given:
        given = {**given, "headers": dict(given["headers"])}
    return Message(body, routing_key, exchange=exchange, **given)


def question(body: bytes, routing_key: str, exchange: str, given: Fields) -> Message:
    """Return the same of an RPC call."""
    given = {"correlation_id": new_id(), "delivery_mode": 1, **given}
    return outgoing(body, routing_key, exchange, given)


def fields_of(message: Message) -> Fields:
    """Return the properties of a message as keywords of `publish`."""
    properties = message.properties
    if properties is None:
        return {}
    found = {name: value for name, _ in FIELDS if (value := getattr(properties, name)) is not None}
    if not found.get("headers", True):
        del found["headers"]
    return found  # type: ignore[return-value]  # the names are those of Fields


class Streaming:
    """The interceptors of one call of `publish_many`: `copies` gives the messages that are sent."""

    def __init__(
        self, notes: list[Callable[[Message], object]], exchange: str, routing_key: str, given: Fields
    ) -> None:
        self.notes = notes
        self.exchange = exchange
        self.routing_key = routing_key
        self.given = given

    def copy(self, item: bytes | Message) -> Message:
        """Return the message that is sent instead of this one, which stays as it is."""
        if isinstance(item, Message):
            given = fields_of(item)
            message = outgoing(item.body, item.routing_key or self.routing_key, item.exchange or self.exchange, given)
        else:
            message = outgoing(item, self.routing_key, self.exchange, self.given)
        for note in self.notes:
            note(message)
        return message


@contextlib.contextmanager
def streaming(
    interceptors: Iterable[Interceptor], exchange: str, routing_key: str, given: Fields
) -> Iterator[Streaming]:
    """Around one call of `publish_many`."""
    stack, notes = enter(interceptor.publish_many(exchange, routing_key) for interceptor in interceptors)
    with stack:
        yield Streaming(notes, exchange, routing_key, given)


class Handling(AbstractContextManager[T]):
    """The block of one message: `settling` acks or rejects at its end, inside of the interceptors. `given`: the value of the block."""

    def __init__(
        self,
        interceptors: Iterable[Interceptor],
        message: IncomingMessage,
        queue: str,
        settling: AbstractContextManager[object],
        given: T,
    ) -> None:
        self.interceptors = interceptors
        self.message = message
        self.queue = queue
        self.settling = settling
        self.given = given
        self.stack = ExitStack()

    def __enter__(self) -> T:
        self.settling.__enter__()
        try:
            self.stack, _ = enter(each.handle(self.message, self.queue) for each in self.interceptors)
        except BaseException as error:
            self.settling.__exit__(type(error), error, error.__traceback__)
            raise
        return self.given

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        try:
            self.settling.__exit__(kind, error, tb)  # type: ignore[arg-type]
        except BaseException as failed:
            self.stack.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self.stack.__exit__(kind, error, tb)  # type: ignore[arg-type]
