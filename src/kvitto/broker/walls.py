"""Walls between the work of one owner and all others: an unexpected exception ends what its owner has, and nothing else.

An owner is a connection or a queue; it has a method `contain(error)` that takes it out of the way. docs/adr/0014 says what may go
on after an unexpected exception, and why that is safe. A StoreError is about the disk and passes every wall but a queue's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from kvitto.base.errors import StoreError


@runtime_checkable
class Owner(Protocol):
    """Something that can be ended by itself when work on its behalf fails."""

    def contain(self, error: Exception) -> None:
        """An exception has ended work for this owner: nothing else may suffer from it."""
        ...


def run(owner: object, action: Callable[..., Any], *args: Any) -> Any:
    """Call `action` on behalf of `owner`. Returns its result, or None if it raised and the owner has contained the exception."""
    try:
        return action(*args)
    except StoreError:
        raise
    except Exception as error:
        if not isinstance(owner, Owner):
            raise
        owner.contain(error)
        return None


def guarded(owner: object, action: Callable[[], Any]) -> Callable[[], None]:
    """`action` for somebody else to call later, who must not suffer from what it raises."""

    def call() -> None:
        run(owner, action)

    return call
