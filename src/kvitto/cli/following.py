"""`kvitto serve --follow`: keeps a copy of another broker's data directory, and serves no clients. `cli.serve` calls it.

There is no event loop: a follower has one thing to do at a time. It ends with a signal, with an error of its disk, or when it is refused;
everything else it tries again.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from kvitto.base.clock import SystemClock
from kvitto.base.config import Config, address
from kvitto.base.errors import StoreFull
from kvitto.cluster.follower import Follower
from kvitto.cluster.handshake import Refused, read_key
from kvitto.cluster.records import StreamError
from kvitto.server.lanes import Lanes
from kvitto.server.listening import CUT_S, end_if_cut
from kvitto.server.node_tls import NodeTls, is_about_certificate, node_tls, why_not_leader
from kvitto.server.notify import Notify
from kvitto.server.scrubbing import Scrubbing, in_words
from kvitto.store import paths
from kvitto.store.disk import RealDisk
from kvitto.store.scrub import Damage
from kvitto.store.store import refuse_incomplete, refuse_inside

log = logging.getLogger("kvitto")

READ_BYTES = 1 << 20
CONNECT_S = 5.0
SILENCE_S = 15.0
"""A leader says four times a second that it is there."""
ANEW = "KVITTO_BEGUN_ANEW"
"""A process that has led sets this environment variable before `exec`, so that the new process lets others lead first. Its value is the
reason why the broker had no room, or empty."""
STOPS = (signal.SIGTERM, signal.SIGINT)
"""The signals that stop a broker or a node in order."""
AGAIN_S, AGAIN_MAX_S = 0.1, 5.0
REFUSED_S = 15.0
"""A node that is refused for a reason that may pass tries again for this time before it ends."""


class Stopped(BaseException):
    """A signal. Its handler raises it, since the directory may be left at any moment."""


def follow(config: Config) -> int:
    """Follow until a signal. Raises Refused, StoreError or ConfigError."""
    assert config.cluster_key is not None
    host, port = address(config.follow)
    key = read_key(config.cluster_key)
    disk = RealDisk(str(config.data_dir))
    refuse_inside(disk)
    disk.makedirs("")
    lock = disk.lock(paths.LOCK)
    refuse_incomplete(disk)
    follower = Follower(disk, SystemClock(), key, config.follow, log.info, sync=Lanes().sync)
    tls = node_tls(config)
    for number in STOPS:
        signal.signal(number, stop)
    notify = Notify(os.environ)
    scrubbing = scrub(follower)
    line = f"kvitto follows leader={config.follow} data={disk.root} pid={os.getpid()}"
    print(line, flush=True)
    notify.ready(line)
    try:
        keep_following(follower, host, port, tls, notify.alive)
    except Stopped:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        log.info("stopping")
        notify.stopping()
    scrubbing.stop()
    del lock
    return 0


def stop(_number: int, _frame: object) -> None:
    raise Stopped


class Patience:
    """How long a node tries again although it was refused, because its own earlier process may seem to be alive."""

    def __init__(self) -> None:
        self._since = self._last = 0.0
        """When it was refused for the first time, and for the last time."""

    def bear(self, error: Refused) -> str:
        """Return why the node tries again. Raises the error if that is of no use, or if the node has tried for REFUSED_S."""
        now = time.monotonic()
        if now - self._last > REFUSED_S:
            self._since = now
        self._last = now
        if not error.again or now - self._since > REFUSED_S:
            raise error
        return str(error)


def keep_following(
    follower: Follower, host: str, port: int, tls: NodeTls | None, alive: Callable[[], None]
) -> NoReturn:
    """Connect again and again."""
    pause, said, patience = AGAIN_S, "", Patience()
    while True:
        before = follower.place
        alive()
        try:
            with connected((host, port), CONNECT_S, tls, CONNECT_S) as sock:
                why = talk(follower, sock, SILENCE_S, alive, alive)
        except Refused as error:
            why = patience.bear(error)
        except StoreFull as error:
            why = f"{error}; nothing more is taken until there is room"
        except StreamError as error:
            why = f"refused what came: {error}"
        except OSError as error:
            why = why_ended(error)
        if follower.place > before:
            pause, said = AGAIN_S, ""
        if why != said:
            log.warning("%s: %s; trying again", follower.where, why)
            said = why
        time.sleep(pause)
        pause = min(2 * pause, AGAIN_MAX_S)


def connected(leader: tuple[str, int], timeout_s: float, tls: NodeTls | None, silence_s: float) -> socket.socket:
    """Connect to a leader, with TLS if nodes use it. It may then be silent for `silence_s`. Raises OSError."""
    sock = socket.create_connection(leader, timeout_s)
    return sock if tls is None else tls.begin(sock, leader[0], silence_s)


def why_ended(error: OSError) -> str:
    """Return why a connection has ended, in words."""
    return why_not_leader(error) if is_about_certificate(error) else str(error)


def scrub(follower: Follower) -> Scrubbing:
    """Begin to verify the files of a follower in the background. If some are damaged it gets them again from its leader."""

    told: set[Damage] = set()

    def tell(damage: Damage, whose: str) -> None:
        if damage in told:
            return  # the leader has no better copy
        if is_together():
            told.add(damage)
            log.error("%s; all files are compared with the leader's to get a good copy", in_words(damage, whose))
            follower.damage = str(damage)

    def is_together() -> bool:
        return bool(follower.session) and not follower.copying and not follower.damage

    found = Scrubbing(follower.disk, tell, is_together)
    found.start()
    return found


def unheard() -> None:
    """The `heard_of` of a follower that makes no promises, and the `alive` of one that nobody watches."""


def talk(
    follower: Follower,
    sock: socket.socket,
    silence_s: float = SILENCE_S,
    heard_of: Callable[[], None] = unheard,
    alive: Callable[[], None] = unheard,
) -> str:
    """One connection, until the leader closes it, or damage was found here. Return why it ended. Raises Refused, StreamError, StoreError or
    OSError.

    `heard_of` is called before anything that has come is answered, `alive` again and again while that takes long.
    """
    sock.settimeout(silence_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end_if_cut(sock, CUT_S)  # nothing is received while files are read for their checksums
    sock.sendall(follower.begin())
    heard, since = follower.heard, time.monotonic()
    while data := sock.recv(READ_BYTES):
        if follower.heard != heard:
            heard, since = follower.heard, time.monotonic()
        elif time.monotonic() - since > SILENCE_S:  # what looks like the beginning of a long record may be damaged
            raise StreamError(f"no whole record for {SILENCE_S:g} s")
        if follower.damage:
            return "files of this node are damaged, and are compared"
        heard_of()
        began = time.monotonic()
        try:
            for answer in follower.feed(data):
                alive()
                sock.sendall(answer)
            alive()
        except Refused as error:
            with suppress(OSError):
                sock.sendall(follower.refusal(str(error)))
            raise
        since += time.monotonic() - began  # to read all files for their checksums may take hours
    return "the leader has closed the connection"
