"""The selector of the server's event loop. It serves the sockets of AMQP peers itself, and leaves all other files to asyncio.

asyncio makes a `Handle` for each socket that is ready, runs it through its transport, and runs the turn in another round of the loop with
another system call. In the traffic of most applications, where each message is an event of its own, that costs more than the message
(docs/adr/0023). `Loop` is asyncio's loop with this selector.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

READY_MAX = 512
"""At most this many files are served in one round. Those that are left come first in the next one."""


class Served(Protocol):
    """A socket that the poller serves."""

    def ready(self, events: int) -> None:
        """Read or write, as far as `events` (EVENT_READ, EVENT_WRITE) says that it is possible now. Raises nothing."""


def nothing() -> None:
    """The turn of a loop without a server."""


class Poller(selectors.BaseSelector):
    """A selector on Linux's epoll, or on what the system has (`selectors.DefaultSelector`)."""

    def __init__(self) -> None:
        self.turn: Callable[[], object] = nothing
        """Called behind the input of all peers that were ready, if there were any."""
        self.serving = False
        """Whether peers are being served now: `turn` follows."""
        self._served: dict[int, Served] = {}
        self._keys: dict[int, SelectorKey] = {}
        """asyncio's files."""
        self._epoll: select.epoll | None = select.epoll() if hasattr(select, "epoll") else None
        self._other = None if self._epoll is not None else selectors.DefaultSelector()

    # -- peers -----------------------------------------------------------------------------------------------

    def watch(self, fd: int, served: Served, before: int, events: int) -> None:
        """Change the events that are watched for a peer's socket from `before` to `events`; 0 means none."""
        if not events:
            del self._served[fd]
            self._forget(fd)
            return
        self._served[fd] = served
        self._set(fd, events, not before)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait, serve the peers that are ready, and return what asyncio has to handle."""
        found: list[tuple[SelectorKey, int]] = []
        for fd, events in self._poll(timeout):
            served = self._served.get(fd)
            if served is not None:
                self.serving = True
                served.ready(events)
                continue
            key = self._keys.get(fd)
            if key is not None and events & key.events:
                found.append((key, events & key.events))
        if self.serving:
            self.serving = False
            self.turn()
        return found

    # -- the system's selector -------------------------------------------------------------------------------

    def _poll(self, timeout: float | None) -> list[tuple[int, int]]:
        """Return the descriptors that are ready, each with its events."""
        if self._epoll is None:
            assert self._other is not None
            return [(key.fd, events) for key, events in self._other.select(timeout)]
        # epoll counts whole milliseconds: a timer must not be early
        wait = -1 if timeout is None else 0 if timeout <= 0 else math.ceil(timeout * 1e3) * 1e-3
        try:
            ready = self._epoll.poll(wait, READY_MAX)
        except InterruptedError:
            return []
        # a socket that is broken is ready for both
        return [
            (fd, (EVENT_READ if bits & ~select.EPOLLOUT else 0) | (EVENT_WRITE if bits & ~select.EPOLLIN else 0))
            for fd, bits in ready
        ]

    def _set(self, fd: int, events: int, fresh: bool) -> None:
        if self._epoll is None:
            assert self._other is not None
            (self._other.register if fresh else self._other.modify)(fd, events)
            return
        bits = (select.EPOLLIN if events & EVENT_READ else 0) | (select.EPOLLOUT if events & EVENT_WRITE else 0)
        (self._epoll.register if fresh else self._epoll.modify)(fd, bits)

    def _forget(self, fd: int) -> None:
        try:
            if self._epoll is None:
                assert self._other is not None
                self._other.unregister(fd)
            else:
                self._epoll.unregister(fd)
        except OSError:  # it has been closed before
            pass

    # -- what asyncio calls ----------------------------------------------------------------------------------

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        fd = _descriptor(fileobj)
        if fd in self._keys or fd in self._served:
            raise KeyError(f"{fileobj!r} (descriptor {fd}) is watched already")
        self._set(fd, events, True)
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        key = self.get_key(fileobj)
        del self._keys[key.fd]
        self._forget(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        key = self.get_key(fileobj)
        if events != key.events:
            self._set(key.fd, events, False)
        changed = self._keys[key.fd] = SelectorKey(fileobj, key.fd, events, data)
        return changed

    def get_key(self, fileobj: Any) -> SelectorKey:
        try:
            return self._keys[_descriptor(fileobj)]
        except (KeyError, ValueError):
            for key in self._keys.values():  # it may have been closed
                if key.fileobj is fileobj:
                    return key
            raise KeyError(f"{fileobj!r} is not watched") from None

    def get_map(self) -> Mapping[Any, SelectorKey]:
        return Watched(self)

    def close(self) -> None:
        for selector in (self._epoll, self._other):
            if selector is not None:
                selector.close()
        self._keys.clear()
        self._served.clear()


class Watched(Mapping[Any, SelectorKey]):
    """The keys of asyncio's files, by file object or descriptor."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller

    def __getitem__(self, fileobj: Any) -> SelectorKey:
        return self._poller.get_key(fileobj)

    def __len__(self) -> int:
        return len(self._poller._keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._poller._keys)


def _descriptor(fileobj: Any) -> int:
    """Return the descriptor of a file object, or of a number. Raises ValueError."""
    fd = fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
    if fd < 0:
        raise ValueError(f"invalid file descriptor {fd}")
    return fd


class Loop(asyncio.SelectorEventLoop):
    """asyncio's event loop, with a poller for the sockets of AMQP peers."""

    def __init__(self) -> None:
        self.poller = Poller()
        super().__init__(self.poller)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does, in a `Loop`."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
