"""Walls between the work of one owner and all others: an unexpected exception ends what its owner has, and nothing else.

An owner is a connection, a channel or a queue, or a service of the broker; its method `contain` takes it out of the way, or raises
what may not be contained: a failed sync, the journal and the definitions. docs/adr/0015 says what may go on, and why that is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from kvitto.base.errors import INTERNAL_ERROR, ChannelError, PromiseError, ProtocolError, StoreError, StoreFull

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.store.store import Store

log = logging.getLogger("kvitto.broker")

T = TypeVar("T")


def run(owner: Any, action: Callable[..., Any], *args: Any) -> Any:
    """Call `action` on behalf of `owner`. Returns its result, or None if it raised and the owner has contained the exception."""
    try:
        return action(*args)
    except Exception as error:
        if not hasattr(owner, "contain"):
            raise
        owner.contain(error)
        return None


def guarded(owner: Any, action: Callable[[], Any]) -> Callable[[], None]:
    """`action` for somebody else to call later, who must not suffer from what it raises."""

    def call() -> None:
        run(owner, action)

    return call


def owner_of(callback: Callable[..., Any], args: tuple[Any, ...]) -> object:
    """Whose work a timer's callback is: that of the object whose method it is, or of its first argument."""
    for candidate in (getattr(callback, "__self__", None), *args):
        if hasattr(candidate, "contain"):
            return candidate
    return None


def within(queue: Queue, action: Callable[..., Any], *args: Any) -> Any:
    """Call a method of a queue on behalf of a peer. An unexpected exception takes the queue out of service, and the peer is told.

    Raises ChannelError 541 then; what the peer has done wrong, and StoreFull, pass as they are.
    """
    try:
        return action(*args)
    except Exception as error:
        _judge(queue, error)
        raise


def steps_within(queue: Queue, steps: Generator[object, None, T]) -> Generator[object, None, T]:
    """As `within`, for work that is done in pieces."""
    try:
        return (yield from steps)
    except Exception as error:
        _judge(queue, error)
        raise


def _judge(queue: Queue, error: Exception) -> None:
    """Take the queue out of service, and raise ChannelError 541, if it is the queue's work that has failed unexpectedly."""
    if forget_consumer(queue) or isinstance(error, (ProtocolError, StoreFull)):
        return
    queue.contain(error)
    raise out_of_service(queue) from error


def forget_consumer(queue: Queue) -> bool:
    """Whether it was a consumer's code that raised: then it is not the queue that has failed."""
    consumer, queue.serving = queue.serving, None
    if consumer is not None:
        consumer.undo()
    return consumer is not None


def out_of_service(queue: Queue) -> ChannelError:
    """What a peer is told that wants something of a queue whose work has failed."""
    thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
    return ChannelError(
        INTERNAL_ERROR, f"{thing} is out of service after an internal error until the broker is restarted"
    )


def essential(what: str, action: Callable[..., Any], *args: Any) -> Any:
    """Call what promises depend on: if it fails in an unexpected way, PromiseError says that the process cannot go on."""
    try:
        return action(*args)
    except (StoreFull, PromiseError):
        raise
    except Exception as error:
        raise PromiseError(f"{what} cannot be written: {error}") from error


class Routine:
    """Work that comes again with every turn: an unexpected exception is told, and the next turn goes on where it can."""

    def contain(self, error: Exception) -> None:
        """Say so in the log. StoreError is raised again."""
        if isinstance(error, StoreError):
            raise error
        log.error("internal error in %s", type(self).__name__.lower(), exc_info=error)


class Service:
    """A part of the broker that works for all queues or channels: after an unexpected exception it does no more until a restart."""

    stopped = ""
    """What is not done any more, as a sentence for people."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def contain(self, error: Exception) -> None:
        """Say so in the log and among the alarms. What the disk has refused is no matter of one service: StoreError is raised again."""
        if isinstance(error, StoreError):
            raise error
        log.error("internal error", exc_info=error)
        self._store.alarm(
            f"{self.stopped} until the broker is restarted: an internal error has ended that work, the log has the details"
        )
