"""Isolates failures: an unexpected exception ends the work of its owner, and of nobody else.

An owner is a connection, a channel, a queue or a service of the broker. Its method `contain` ends it, or raises the error again if it
must end the process: a failed sync, or an error in the journal or the definitions. docs/adr/0015 says why going on is safe.
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
    """Return a function that calls `action` on behalf of `owner`, so that an exception does not reach the later caller."""

    def call() -> None:
        run(owner, action)

    return call


def owner_of(callback: Callable[..., Any], args: tuple[Any, ...]) -> object:
    """Return the owner of a timer's callback: the object whose method it is, or else its first argument."""
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
    """Do the same as `within` for work that is done in pieces."""
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
    """Return whether a consumer's code has raised. Then the consumer has failed, and not the queue."""
    consumer, queue.serving = queue.serving, None
    if consumer is not None:
        consumer.undo()
    return consumer is not None


def out_of_service(queue: Queue) -> ChannelError:
    """Return the error for a peer that uses a queue which is out of service."""
    thing = f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
    return ChannelError(
        INTERNAL_ERROR, f"{thing} is out of service after an internal error until the broker is restarted"
    )


def essential(what: str, action: Callable[..., Any], *args: Any) -> Any:
    """Call an action that promises depend on. If it fails unexpectedly, PromiseError says that the process cannot go on."""
    try:
        return action(*args)
    except (StoreFull, PromiseError):
        raise
    except Exception as error:
        raise PromiseError(f"{what} cannot be written: {error}") from error


def note(routine: object, error: Exception) -> None:
    """Log an error in work that is repeated. StoreError is raised again."""
    if isinstance(error, StoreError):
        raise error
    log.error("internal error in %s", type(routine).__name__.lower(), exc_info=error)


class Routine:
    """Work that is repeated in every turn. An unexpected exception is logged, and the next turn tries again."""

    def contain(self, error: Exception) -> None:
        """Log the error. StoreError is raised again."""
        note(self, error)


class Service:
    """A part of the broker that works for all queues or channels. After an unexpected exception it stops until a restart."""

    stopped = ""
    """What the broker no longer does after a failure, as a clause of a sentence for people."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def contain(self, error: Exception) -> None:
        """Log the error and raise an alarm. StoreError concerns more than one service and is raised again."""
        if isinstance(error, StoreError):
            raise error
        log.error("internal error", exc_info=error)
        self._store.alarm(
            f"{self.stopped} until the broker is restarted: an internal error has ended that work, the log has the details",
            damage=False,
        )
