"""The selector of the server's event loop. It serves the sockets of AMQP peers itself, and leaves all other files to asyncio.

asyncio makes a `Handle` for each socket that is ready, runs it through its transport, and runs the turn in another round of the loop with
another system call. In the traffic of most applications, where each message is an event of its own, that costs more than the message
(docs/adr/0023). `Loop` is asyncio's loop with this selector.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from typing import Any, TypeVar

from kvitto.base import ticks
from kvitto.broker.latencies import Latencies
from kvitto.server import ready
from kvitto.server.served import Served

T = TypeVar("T")

READY_MAX = 512
"""At most this many files are served in one round. Those that are left come first in the next one."""
POLLS = 4
"""At most so many times in a round the poller looks for input of further peers that has come meanwhile, before the turn."""
MORE_S = 0.0001
"""It does not look again when serving peers has taken longer than this, in seconds."""
ROUNDS = 100
"""At most this many rounds follow each other without asyncio."""
SHARE_S = 0.001
"""While asyncio has callbacks to run, peers that have been served are served again after this time in seconds, or after as much time as
serving them has taken, if that is longer."""
NOBODY: dict[int, Served] = {}
"""The peers of a round that serves none."""
LONGEST_S = 86_400.0
"""The longest wait, whose milliseconds an integer of C can hold. Asyncio waits again after it."""
_IN, _OUT = 1, 4  # EPOLLIN, EPOLLOUT; C variables when compiled
_READ, _WRITE = EVENT_READ, EVENT_WRITE


def nothing() -> None:
    """The turn of a loop without a server."""


def serve(
    peers: dict[int, Served],
    box: bytearray,
    count: int,
    keys: dict[int, SelectorKey],
    found: list[tuple[SelectorKey, int]],
    number: int,
) -> bool:
    """Handle the events that a wait has found, in the round with this number. Return whether a peer was served."""
    served = False
    for i in range(count):
        bits = ready.bits(box, i)
        # a socket that is broken is ready for both
        events = (_READ if bits & ~_OUT else 0) | (_WRITE if bits & ~_IN else 0)
        if handle(peers, ready.descriptor(box, i), events, keys, found, number):
            served = True
    return served


def handle(
    peers: dict[int, Served],
    fd: int,
    events: int,
    keys: dict[int, SelectorKey],
    found: list[tuple[SelectorKey, int]],
    number: int,
) -> bool:
    """Serve a peer whose socket is ready, or note for asyncio that a file of its own is. Return whether a peer was served.

    A peer is served once in a round: what it sends meanwhile is read as a whole by the next one.
    """
    peer = peers.get(fd)
    if peer is not None:
        if peer.served_in == number:
            return False
        peer.served_in = number
        peer.ready(events)
        return True
    key = keys.get(fd)
    if key is not None and events & key.events:
        found.append((key, events & key.events))
    return False


class Rounds:
    """The waits of a poller, and what it does behind each of them. It runs for each event, so it is a class of C when compiled."""

    def __init__(self, epoll: select.epoll | None, other: selectors.BaseSelector | None) -> None:
        self.turn: Callable[[], object] = nothing
        """Called behind the input of all peers that were ready, if there were any."""
        self.serving = False
        """Whether peers are being served now: `turn` follows."""
        self.peers: dict[int, Served] = {}
        """The peers, by the descriptors of their sockets. Each is served when its socket is ready."""
        self.keys: dict[int, SelectorKey] = {}
        """asyncio's files."""
        self.found: list[tuple[SelectorKey, int]] = []
        """Those of asyncio's files that were ready in the last round, with their events."""
        self.latencies: Latencies | None = None
        """The histograms of the server that runs in the loop."""
        self.due = 0.0
        """The time of `ticks.seconds` at which `on_due` is called; 0.0: never. Asyncio's timers are not finer than a millisecond."""
        self.on_due: Callable[[], object] = nothing
        self.fine = epoll is None or ready.fine(epoll.fileno())
        """Whether a wait can end exactly at `due`. If not, it may end up to a millisecond later."""
        self._epoll = epoll
        self._other = other
        self._fd = -1 if epoll is None else epoll.fileno()
        self._events = bytearray(ready.EVENT_BYTES * READY_MAX)
        self._number = 0
        self._share_ends = 0.0
        """While asyncio has callbacks to run, no peer is served before this time of `ticks.seconds`."""

    def round(self, timeout: float) -> bool:
        """Wait once, and serve the peers that are ready. Return whether one was served, or `due` has come.

        `timeout`: how long to wait, in seconds; less than 0 stands for no limit.

        A timeout of 0 says that asyncio has callbacks to run. An HTTP request needs several of them, one after the other, and peers that
        publish without pause take milliseconds in each round. So some rounds serve no peers then (`SHARE_S`).
        """
        served = due = False
        self._number += 1
        found = self.found = []
        began = ticks.seconds()
        peers = NOBODY if timeout == 0 and began < self._share_ends else self.peers
        if self.due and (timeout < 0 or began + timeout > self.due):
            timeout = max(self.due - began, 0.0)
        self.serving = True
        try:
            if self._epoll is None:
                assert self._other is not None
                files = self._other.select(None if timeout < 0 else timeout)
                began = ticks.seconds()
                for key, events in files:
                    if handle(peers, key.fd, events, self.keys, found, self._number):
                        served = True
            else:
                count = ready.wait(self._epoll, self._fd, self._events, READY_MAX, min(timeout, LONGEST_S))
                began = ticks.seconds()
                served = serve(peers, self._events, count, self.keys, found, self._number)
                more, polls = served, 0
                while more and polls < POLLS and not found and ticks.seconds() - began < MORE_S:
                    polls += 1
                    count = ready.wait(self._epoll, self._fd, self._events, READY_MAX, 0.0)
                    more = serve(peers, self._events, count, self.keys, found, self._number)
            if self.due and began >= self.due:
                self.due, due = 0.0, True
                self.on_due()
        finally:  # a peer has raised: the others may have asked for a turn
            self.serving = False
            self.turn()
        if served or due:
            now = ticks.seconds()
            if served:
                self._share_ends = now + max(now - began, SHARE_S)
            if self.latencies is not None:
                self.latencies.held_by_peers(now - began)
        return served or due

    def follow(self, loop: Any, timeout: float) -> None:
        """Wait and serve peers, round after round, until asyncio has something to do. `timeout`: as in `round`."""
        end = 0.0 if timeout < 0 else ticks.seconds() + timeout
        callbacks = loop._ready
        first = loop._scheduled[0] if loop._scheduled else None
        for _ in range(ROUNDS):
            served = self.round(timeout)
            timers = loop._scheduled
            if not served or self.found or callbacks or (timers[0] if timers else None) is not first:
                return
            if end:
                timeout = end - ticks.seconds()
                if timeout <= 0:
                    return


class Poller(selectors.BaseSelector):
    """A selector on Linux's epoll, or on what the system has (`selectors.DefaultSelector`)."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = select.epoll() if hasattr(select, "epoll") else None
        self._other = None if self._epoll is not None else selectors.DefaultSelector()
        self.rounds = Rounds(self._epoll, self._other)
        self._served, self._keys = self.rounds.peers, self.rounds.keys
        self.loop: Any = None
        """The loop that calls `select`."""
        self._left = 0.0
        """When asyncio last got what it has to handle."""

    @property
    def turn(self) -> Callable[[], object]:
        """What `rounds` calls behind the input of all peers that were ready. A server sets it here, where `benchmarks.stalls` times it."""
        return self.rounds.turn

    @turn.setter
    def turn(self, turn: Callable[[], object]) -> None:
        self.rounds.turn = turn

    # -- peers -----------------------------------------------------------------------------------------------

    def watch(self, fd: int, served: Served, before: int, events: int) -> None:
        """Change the events that are watched for a peer's socket from `before` to `events`; 0 means none."""
        if not events:
            del self._served[fd]
            self._forget(fd)
            return
        if self._served.get(fd) is not served:
            served.served_in = 0
        self._served[fd] = served
        self._set(fd, events, not before)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait, serve the peers that are ready, and return what asyncio has to handle.

        While asyncio has nothing to do, this waits again: a round of asyncio costs as much as a message.
        """
        latencies = self.rounds.latencies
        if latencies is None:
            return self._select(timeout)
        latencies.held_by_callbacks(ticks.seconds() - self._left)
        found = self._select(timeout)
        self._left = ticks.seconds()
        return found

    def measure(self, latencies: Latencies) -> None:
        """Measure from now on how long the loop is held by what it does between its waits."""
        self.rounds.latencies, self._left = latencies, ticks.seconds()

    def _select(self, timeout: float | None) -> list[tuple[SelectorKey, int]]:
        loop = self.loop
        if loop is None or (timeout is not None and timeout <= 0):
            self.round(timeout)
            return self.rounds.found
        self.rounds.follow(loop, -1.0 if timeout is None else timeout)
        return self.rounds.found

    def round(self, timeout: float | None) -> bool:
        """Wait once, as `Rounds.round` does. `timeout`: None stands for no limit."""
        return self.rounds.round(-1.0 if timeout is None else max(timeout, 0.0))

    # -- the system's selector -------------------------------------------------------------------------------

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
        if hasattr(self, "_ready") and hasattr(self, "_scheduled"):  # these private lists hold what asyncio has to do
            self.poller.loop = self


def run(main: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does, in a `Loop`."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)


assert not hasattr(select, "EPOLLOUT") or (_IN, _OUT) == (select.EPOLLIN, select.EPOLLOUT)
