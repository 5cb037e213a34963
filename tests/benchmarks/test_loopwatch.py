"""`benchmarks.stalls` times what a poller does outside of asyncio: each peer that is served, and the turn behind them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from selectors import EVENT_READ

from benchmarks.stalls.loopwatch import watch_peers
from kvitto.server.poller import Poller
from kvitto.server.served import Served


def test_peers_and_the_turn_are_timed_and_rounds_are_told_apart() -> None:
    class Watched(Poller):
        pass

    seen: list[object] = []
    done: list[str] = []

    def timed(callback: object, action: Callable[..., object], *args: object) -> None:
        seen.append(callback)
        action(*args)

    class Peer(Served):
        def ready(self, events: int) -> None:
            done.append("served")

    def turn() -> None:
        done.append("turn")

    watch_peers(Watched, timed, lambda: done.append("ended"))
    poller, peer = Watched(), Peer()
    poller.turn = turn
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poller.watch(ours.fileno(), peer, 0, EVENT_READ)
        theirs.send(b"x")
        poller.select(1)
        poller.watch(ours.fileno(), peer, EVENT_READ, 0)
    poller.close()
    assert done == ["served", "turn", "ended"] and seen == [peer.ready, turn]
