"""The lease of a leader: a thread that renews it while the broker is well, and looks whether the seat is still this leader's.

Nothing that is confirmed depends on it (docs/adr/0030). It tells the leader how long it may serve clients, and the others when they may try
to lead. Its end is counted from the moment when a renewal was sent, by a clock that goes on while the machine sleeps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kvitto.cluster.register import Register, RegisterError, Seat, Seen, Unanswered

log = logging.getLogger("kvitto")

TTL_S = 5
"""The seat of a leader becomes free if the leader does not renew its lease for this time. etcd does not allow less than 2 s."""
AGAIN_S = 0.3
"""A renewal that has failed is tried again after this time."""
MARGIN_S = 0.7
"""A leader stops serving clients this long before its lease ends, because the clocks of two machines run at slightly different speeds."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def well() -> bool:
    """Say that the broker is well: nothing watches it yet."""
    return True


def unheard(_seen: Seen) -> None:
    """The `on_seen` of a lease before its server has started."""


def boottime() -> float:
    """Return seconds of a clock that is never set, and that goes on while the machine sleeps, where the system has one."""
    return time.clock_gettime(_CLOCK)


class Lease:
    def __init__(self, register: Register, seat: Seat, lease: str, sent: float) -> None:
        """`sent`: when the request was sent that made the lease."""
        self._register = register
        self._seat = seat
        self._lease = lease
        self.until = sent + TTL_S - MARGIN_S
        """No other node can take the seat before this time of `boottime`."""
        self.version: Callable[[], int] = int
        """Returns the version of the document by which this node leads."""
        self.is_well: Callable[[], bool] = well
        self.on_seen: Callable[[Seen], None] = unheard
        """The thread calls this with the content of the register after each renewal."""
        self.gives_up = False
        """Whether the seat is to be given up when this node leads no more: no other one has it yet."""
        self._ended = threading.Event()
        self._given_up = False
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="kvitto-lease", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why the last renewal has failed, "" if it has not."""
        return self._said

    def _run(self) -> None:
        pause = TTL_S / 3
        while not self._ended.wait(pause):
            pause = TTL_S / 3
            try:
                if self.is_well():
                    self._renew()
                    self._said = ""
                else:
                    self._tell("the broker is not well: its lease is not renewed")
            except Exception as error:  # noqa: BLE001 - top of the thread: while it tries again the lease may end
                self._tell(f"cannot renew the lease: {error}")
                pause = AGAIN_S

    def _renew(self) -> None:
        sent = boottime()
        held = self._register.renew(self._lease)
        seen = self._register.read()
        if seen.seat is None:
            lease = self._lease if held else self._register.grant(TTL_S)
            held = self._register.sit_down_again(self.version(), self._seat, lease)
            if held:
                log.warning("the seat of the leader was free, and nobody else was elected: this node leads on")
                self._lease = lease
        elif seen.seat.process != self._seat.process:
            held = False
        if held:
            self.until = sent + TTL_S - MARGIN_S
        self.on_seen(seen)

    def _tell(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
            self._said = text

    def stop(self, give_up: bool) -> None:
        """End the thread. `give_up`: give the seat up at once."""
        self._ended.set()
        if not give_up or self._given_up:
            return
        self._given_up = True
        self._thread.join()
        try:
            self._register.revoke(self._lease)
        except (Unanswered, RegisterError) as error:
            log.warning("cannot give the seat of the leader up, which is free in %d s: %s", TTL_S, error)
