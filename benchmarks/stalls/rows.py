"""What a row is, and what it is given.

A row is a generator function in a file of its theme:

    @row("20 log.read over 1,000,000 settled messages")
    def log_reads(site: Site) -> Steps:
        peer = site.peer()
        peer.queue("q")
        peer.fill("q", site.count(1_000_000))
        yield                    # what came before was the setup, from here on it is measured
        ...

Setup and attack are pipelined, a row should take seconds. The attack has to wait until what it has begun is done (`site.wait`,
`peer.wait`); its peers are closed by the harness. Names of queues and exchanges begin with that of the row, since in the small
form all rows share one broker.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.stalls.peer import WAIT_S, Peer, Stuck, http

Closable = TypeVar("Closable")
WATCH_MS = 3000
Steps = Iterator[None]
THEMES = ("acks", "consumers", "topology", "bodies", "http", "lists", "limits")


class Site:
    """A running broker as a row sees it."""

    def __init__(self, port: int, http_port: int, tls_port: int, pid: int, small: bool) -> None:
        self.port = port
        self.http_port = http_port
        self.tls_port = tls_port
        self.pid = pid
        self.small = small
        self._open: list[Any] = []

    def count(self, full: int, small: int = 0) -> int:
        """So many in the full form, in the small one a hundredth, or what is given."""
        return full if not self.small else small or max(full // 100, 2)

    def peer(self, **options: Any) -> Peer:
        return self.keep(Peer(self.port, **options))

    def keep(self, closable: Closable) -> Closable:
        """Close it when the row has ended."""
        self._open.append(closable)
        return closable

    def http(self, verb: str, path: str, body: Any = None, user: str = "guest") -> tuple[int, bytes]:
        return http(self.http_port, verb, path, body, user)

    def watch(self) -> None:
        """Measure for a while in which nothing more is sent."""
        time.sleep(self.count(WATCH_MS, WATCH_MS // 10) / 1000)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > until:
                raise Stuck(f"{what}: not within {WAIT_S:g} s")
            time.sleep(0.001)

    def close(self) -> None:
        for closable in self._open:
            closable.close()


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    title: str
    theme: str
    attack: Callable[[Site], Steps]
    options: Sequence[str] = ()
    """More options of `kvitto serve`; such a row has a broker of its own in the small form, too."""
    tls: bool = False
    """The broker has a TLS listener; so has this one."""

    @property
    def alone(self) -> bool:
        """Whether it cannot share a broker with other rows."""
        return bool(self.options or self.tls)


_rows: dict[str, Row] = {}


def row(
    title: str, options: Sequence[str] = (), tls: bool = False
) -> Callable[[Callable[[Site], Steps]], Callable[[Site], Steps]]:
    def register(attack: Callable[[Site], Steps]) -> Callable[[Site], Steps]:
        name = attack.__name__
        if name in _rows and _rows[name].attack.__module__ != attack.__module__:
            raise ValueError(f"there are two rows {name!r}")
        _rows[name] = Row(name, title, attack.__module__.rpartition(".")[2], attack, options, tls)
        return attack

    return register


def rows() -> dict[str, Row]:
    """All of them, in the order of themes and files."""
    for theme in THEMES:
        importlib.import_module(f"benchmarks.stalls.{theme}")
    return _rows
