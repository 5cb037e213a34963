"""What a node knows of the leader that it follows, and how it notices that this one leads no more. `cli.candidate` uses it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from kvitto.base.config import address
from kvitto.base.readable import readable
from kvitto.cluster.register import Register, RegisterError, Seat, Seen, Unanswered
from kvitto.server.lease import boottime
from kvitto.server.tenure import PROMISE_S

ANSWER_S = 1.0
"""If a machine neither accepts nor refuses a connection within this time, a process is assumed to listen there."""
WATCH_S = 1.0
"""A follower asks the register this often whether its leader still leads."""
WATCH_SILENT_S = 0.2
"""A follower asks this often if it has heard nothing for WATCH_S."""


class LastLeader:
    """The leader from which this process has last received something, and the time until which it has promised not to try to lead."""

    def __init__(self) -> None:
        self.seat: Seat | None = None
        """The seat of that leader, None if this process has received nothing yet."""
        self._dead = ""
        """The last leader's process that is known to have ended."""
        self._heard_at = boottime()
        self.promised_until = self._heard_at + PROMISE_S
        """Until then this node does not try to lead. It begins with a whole PROMISE_S, because an earlier process of this node may have
        promised that just before its end."""

    def is_at(self, seat: Seat) -> bool:
        """Return whether the process in this seat is the leader that last sent something."""
        return self.seat is not None and self.seat.process == seat.process

    def heard(self, seat: Seat) -> None:
        """Note that something has come from this leader."""
        self.seat = seat
        self._heard_at = boottime()
        self.promised_until = self._heard_at + PROMISE_S

    def silent_s(self) -> float:
        """Return for how many seconds nothing has come from the leader."""
        return boottime() - self._heard_at

    def ended(self, seat: Seat) -> None:
        """Note that the process of a leader has ended. The promise to it does not count any more."""
        self._dead = seat.process
        self.promised_until = 0.0

    def has_ended(self, seat: Seat | None) -> bool:
        """Return whether the process of a leader is known to have ended."""
        return seat is not None and seat.process == self._dead


def answers(text: str, timeout_s: float = ANSWER_S) -> bool:
    """Return False if the machine of an address says that nobody listens there. Without an answer in time somebody may."""
    try:
        socket.create_connection(address(text), timeout_s).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def unheard_s(sock: socket.socket | None, heard_at: float) -> float:
    """Return how many seconds ago something came over a connection. Bytes that this node has not read yet, because it is busy, count as
    just come."""
    if sock is None:
        return 0.0
    with suppress(OSError, ValueError):  # it is closed
        if readable(sock, 0.0):
            return 0.0
    return boottime() - heard_at


class Watch:
    """Ends the connection to a leader that leads no more and has not noticed, or that is silent and has lost its lease."""

    def __init__(
        self,
        register: Register,
        seat: Seat,
        sock: socket.socket,
        silent_s: Callable[[], float],
        on_seen: Callable[[Seen], None],
    ) -> None:
        """`silent_s` returns the seconds since something came from the leader. `on_seen` is called with each answer of the register."""
        self._silent_s = silent_s
        self._on_seen = on_seen
        self._register = register
        self._seat = seat
        self._sock = sock
        self.over = False
        """Whether it has ended the connection."""
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="kvitto-watch", daemon=True).start()

    def _run(self) -> None:
        while not self._ended.wait(WATCH_SILENT_S if self._silent_s() > WATCH_S else WATCH_S):
            with suppress(Unanswered, RegisterError):
                seen = self._register.read()
                self._on_seen(seen)
                seat = seen.seat
                over = self._silent_s() > PROMISE_S if seat is None else seat.process != self._seat.process
                if over and not self._ended.is_set():
                    self.over = True
                    with suppress(OSError):
                        # with TLS its own `shutdown` would take the encryption away below the other thread
                        socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
                    return

    def stop(self) -> None:
        self._ended.set()
