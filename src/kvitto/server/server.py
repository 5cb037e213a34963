"""A running broker: listeners, the turn, the sync thread, timers, and an end in order.

One event loop owns all state; the threads of `Syncer` only sync and close files. `run_until_stopped` returns when `stop` was called or
the disk failed (then it raises StoreError: nothing that was waiting has been confirmed, semantics C8).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvitto.base import limits
from kvitto.base.clock import Clock, SystemClock
from kvitto.base.config import Config, ConfigError
from kvitto.base.errors import CONNECTION_FORCED, ConnectionError_, StoreError, StoreFull, SyncError, UnknownFormat
from kvitto.base.process import files_reserve, open_files, open_files_max
from kvitto.broker.administration.auth import FirstUser
from kvitto.broker.broker import Broker
from kvitto.cluster.passing import AMQP, AMQPS, HTTP, HTTPS
from kvitto.cluster.state import read_member
from kvitto.protocol.hub import Hub
from kvitto.protocol.states import RUNNING
from kvitto.protocol.unacked import Held, held
from kvitto.server import definitions
from kvitto.server.acceptor import Acceptor
from kvitto.server.driving import TURN_S, Driving, nothing
from kvitto.server.follower_links import FILES as FOLLOWERS_FILES
from kvitto.server.followers import Followers
from kvitto.server.heartbeats import Heartbeats
from kvitto.server.listening import bind
from kvitto.server.logins import Logins
from kvitto.server.passed import Take
from kvitto.server.peer import INBOX, Peer
from kvitto.server.poller import Loop
from kvitto.server.replaced import Replaced
from kvitto.server.scrubbing import Scrubbing, in_words, place_of
from kvitto.server.shovels import Shovels
from kvitto.server.syncer import Syncer
from kvitto.server.tenure import Damaged, Deposed, Election
from kvitto.server.tls import TlsFiles
from kvitto.server.watch import ConnectionWatch
from kvitto.server.watermarks import Watermarks
from kvitto.store.disk import Disk, RealDisk
from kvitto.store.scrub import Damage
from kvitto.store.store import Store
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.administration.auth import Attempt, User
    from kvitto.broker.queues.queue import Queue
    from kvitto.protocol.connection import Connection

log = logging.getLogger("kvitto")

DRAIN_S = 1.0
"""Clients get this much time to answer Connection.Close."""
HAND_OVER_S = 0.1
"""They get this much if another node waits to lead: a client that does not answer must not delay the next leader."""
GIVE_BACK_BEATS = 30
QUIET_BYTES = 512
QUIET_S = 0.1
IDLE_S = 10
"""After this many seconds in a row, each with less AMQP input than QUIET_BYTES and less CPU time of the loop than QUIET_S, the broker is
idle, and long work disturbs nobody. The CPU time is what shows that requests over HTTP are being served."""
SCRUBBED = 1
"""The file that is being verified, which may be one more than queues need."""
CLEAN_BEATS = 300
"""The minimum time in seconds between two full garbage collections."""


class Server(Driving):
    def __init__(
        self,
        config: Config,
        disk: Disk | None = None,
        clock: Clock | None = None,
        election: Election | None = None,
    ) -> None:
        """`election`: by which this node leads its cluster, None if it belongs to none."""
        clock = clock or SystemClock()
        disk = disk or RealDisk(str(config.data_dir))
        self.followers = Followers(config, disk, election) if config.followers else None
        """Those who keep a copy of the data directory, None without --followers."""
        inherited = election.inherited if election is not None else None
        counted = inherited.counted if inherited is not None else None
        under = self.followers.disk if self.followers else disk
        super().__init__(Store(under, clock, sync=config.sync, counted=counted), clock)
        self._disk = disk
        self._scrubbing = Scrubbing(disk, self._scrubbed, lambda: True)
        self._replaced = Replaced(disk)
        self.config = config
        self.inbox = Buf(INBOX)
        self.port = 0
        self.tls_port = 0
        self.http_port = 0
        self.https_port = 0
        self.started_ms = self.clock.now_ms()
        self._since_ms = self.clock.monotonic_ms()
        self._watermarks: Watermarks
        self._servers: list[Any] = []
        self._acceptors: list[Acceptor] = []
        passed = self.followers.passed if self.followers is not None else None
        self._takers: dict[str, Take] = passed.services if passed is not None else {}
        """What takes connections of clients, for each service (`cluster/passing.py`)."""
        self._other_files = 0
        """The number of open files after the start that belong neither to the store nor to a connection."""
        self._tls: TlsFiles | None = None
        self._idle_s = 0
        self._used_s = 0.0
        """The CPU time of the loop until the last beat."""
        self.when_opened: Callable[[], None] = nothing
        """Called once the data directory is open, before anybody can connect."""
        self.when_idle: Callable[[], None] = nothing
        """Called when the broker has been idle for IDLE_S, and when memory is low."""
        self._clean_at = 0
        self._beat: asyncio.TimerHandle | None = None
        self._beats = 0
        self._stopping = False
        self._successor = ""
        """The member that is to lead when this node ends, "" for any."""
        self._handing_over: asyncio.Task[None] | None = None
        self._told: set[Damage] = set()
        """The damage that `_tell_damage` has told of."""
        self.logins: Logins
        self.shovels: Shovels
        self._logging_in: set[asyncio.Task[User | None]] = set()
        self._ended: asyncio.Event

    @property
    def store_path(self) -> str:
        return os.path.abspath(self.config.data_dir)

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def uptime_ms(self) -> int:
        return self.clock.monotonic_ms() - self._since_ms

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data directory and listen. Raise ConfigError, StoreError or OSError if that is not possible.

        The running loop has to be a `Loop`: use `poller.run` instead of `asyncio.run`.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop), "a server needs kvitto.server.poller.run instead of asyncio.run"
        self._loop = loop
        self.poller, self.rounds = loop.poller, loop.poller.rounds
        self.poller.turn = self._turn_behind_input
        self.rounds.on_due = self.schedule
        self._ended = asyncio.Event()
        if self.config.uses_tls:
            self._tls = TlsFiles(self.config)
        self.broker = Broker(self.store, self.clock, limits.of(self.config.limits))
        self.hub = Hub(self.broker, self, self.config.max_channels)
        self.shovels = Shovels(self)
        self.shovels.register()
        try:
            self.store.open()
            self._look_who_reads()
            if self.followers is not None:
                self.followers.begin(self.store.commits)
            self.broker.start(self._first_user())
            self._refuse_damage()
        except StoreError as error:
            self._fail_start(error)
            raise
        self.broker.turn_s = TURN_S
        self.broker.max_queues = self.config.max_queues
        self.broker.file_room = self._file_room
        self.broker.users.foreign_hashes = self.config.foreign_hashes
        if self.config.definitions is not None:
            self._import(self.config.definitions)
        self.logins = Logins(self.broker.users, self._loop.time)
        self._heartbeats = Heartbeats(self._loop, self.guard)
        self._watch = ConnectionWatch(self.hub)
        self._watermarks = Watermarks(self.config, self.hub.alarms.block, self.store.disk.free_bytes)
        self._syncer = Syncer(self._loop, self._synced, self.schedule)
        self.store.disk.remover = self._syncer
        config = self.config
        self.when_opened()
        try:
            if self.followers is not None and not await self._wait_for(self.followers):
                return
            self.port = await self._listen(config.port)
            if config.tls_port is not None:
                self.tls_port = await self._listen(config.tls_port, self._tls)
            if config.http_port is not None or config.https_port is not None:
                await self._listen_for_http()
        except OSError:
            await self.stop()
            raise
        self._other_files = max(open_files() - self.store.disk.open_files(), 0)
        self._every_second()
        self.poller.measure(self.broker.latencies)  # not the start itself: nobody waits for the loop before
        self.schedule()
        self.shovels.start()
        self._scrubbing.start()

    async def _wait_for(self, followers: Followers) -> bool:
        """Wait until enough followers are in sync. Return False if the start was given up. Raise what has made the broker fail."""
        await followers.listen()
        await followers.wait_in_sync(lambda: self.store.failed)
        if followers.given_up:
            await self.stop()
            return False
        followers.close_gate(self)
        if followers.tenure is not None:
            self.tenure = followers.tenure
            self.tenure.release()
        return True

    def _refuse_damage(self) -> None:
        """In a cluster, have another member lead if files are damaged here: nobody has been told of them yet. Raises Damaged."""
        if self.followers is None:
            return
        self.followers.on_damage(self._found_by_comparing)
        tenure = self.followers.tenure
        if tenure is None:
            return
        damages = [text for text in self.store.damages if not self._has_resigned(text)]
        if damages and tenure.others():
            raise Damaged(damages[0])
        self.store.on_damage = self._found_damage

    def _fail_start(self, error: StoreError) -> None:
        """Note that no broker starts here. In a cluster, have another member lead. Raises Damaged."""
        self.store.fail(error)
        tenure = self.followers.tenure if self.followers is not None else None
        if not is_damage(error) or tenure is None or not tenure.others():
            return
        if not self._has_resigned(str(error)):
            raise Damaged(str(error)) from error

    def _found_damage(self, text: str) -> None:
        """In a cluster, end before the damage is dealt with here, so that it reaches no other copy. Raises Damaged."""
        followers = self.followers
        assert followers is not None and followers.tenure is not None
        if followers.in_sync & set(followers.tenure.others()) and not self._has_resigned(text):
            error = Damaged(text)
            followers.cut()
            self.store.fail(error)
            self._loop.call_soon(
                self.fail, error
            )  # whoever reads for a client may answer the error instead of raising it
            raise error

    def _has_resigned(self, text: str) -> bool:
        """Return whether this node has given up the lead because of that file lately: nobody had a better copy of it."""
        own = read_member(self._disk)
        return own is not None and own.has_resigned(place_of(text), self.clock.now_ms())

    def _scrubbed(self, damage: Damage, whose: str) -> None:
        """Tell of what has been found to be damaged. The thread that verifies files calls this."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.guard, self._tell_damage, damage, whose)

    def _found_by_comparing(self, damage: Damage) -> None:
        self._loop.call_soon(self.guard, self._tell_damage, damage)

    def _tell_damage(self, damage: Damage, whose: str = "") -> None:
        """Raise an alarm. In a cluster, have another member lead, as soon as one is in sync."""
        if self._stopping or self._error is not None:
            return
        text = in_words(damage, whose)
        with contextlib.suppress(Damaged):  # the broker ends, and another member leads
            if damage not in self._told:
                self._told.add(damage)
                self.store.alarm(
                    f"{text}. It was found by verifying files. `kvitto check` and `kvitto salvage` tell what is lost and save the rest, "
                    "once the broker has stopped"
                )
            else:
                self.store.on_damage(text)

    def _look_who_has_better(self) -> None:
        """Have another member lead if it has kept what is damaged here."""
        followers = self.followers
        assert followers is not None
        for path, members in followers.kept.items():
            if members & followers.in_sync:
                with contextlib.suppress(Damaged):
                    self._found_damage(f"{path}: another member has a better copy")

    def _first_user(self) -> FirstUser:
        config = self.config
        if not config.default_user:
            return FirstUser(vhost=config.default_vhost)
        return FirstUser(config.default_user, config.first_password, config.default_vhost)

    def held(self, channel: Any, queue: Queue) -> Iterator[Held | None]:
        return held(channel, queue)

    def _import(self, path: Path) -> None:
        """Import definitions. Raise ConfigError if that is not possible; the directory is then left in order."""
        try:
            definitions.load(self.broker, path)
        except ConfigError:
            self.broker.finish()
            self.store.shut()
            raise

    def _look_who_reads(self) -> None:
        """Warn if others can read the data directory. Files that Kvitto makes are its user's alone, but the directory
        may have existed before."""
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.store_path).st_mode & 0o077:
                log.warning("%s can be read by other users of this machine: chmod 700 it", self.store_path)

    async def _listen(self, port: int, files: TlsFiles | None = None) -> int:
        tls = None if files is None else lambda: files.context
        handshake_s = self.broker.limits.handshake_s
        acceptor = Acceptor(
            lambda sock, address: Peer(self, sock, address), self._has_room, self._too_slow, handshake_s, tls
        )
        self._acceptors.append(acceptor)
        self._servers.append(acceptor)
        self._takers[AMQP if files is None else AMQPS] = acceptor.take
        return await acceptor.listen(self.config.hosts, port)

    async def _listen_for_http(self) -> None:
        from kvitto.http.server import Listener

        config, files = self.config, self._tls
        listener = Listener(self)
        self._servers.append(listener)
        if config.http_port is not None:
            self.http_port = await listener.listen(await bind(config.http_hosts, config.http_port))
            self._takers[HTTP] = listener.taker()
        if config.https_port is not None and files is not None:
            sockets = await bind(config.http_hosts, config.https_port)
            self.https_port = await listener.listen(sockets, lambda: files.context)
            self._takers[HTTPS] = listener.taker()

    def _has_room(self) -> bool:
        """Return whether there is a descriptor for one more peer, even if that one only gets a refusal."""
        if self.refusal() is not None:
            return True
        self.broker.refused["connections"] += 1
        return False

    def _too_slow(self) -> None:
        self.broker.refused["handshake"] += 1

    def _file_room(self) -> int:
        """Return how many more files queues may open. Some descriptors are reserved for connections, so that declaring
        queues locks nobody out."""
        return self._files_left(max(self._peers(), files_reserve()))

    def _files_left(self, peers: int) -> int:
        """Return the number of descriptors that are left after `peers` connections, half of the reserve, and the files
        that existing queues may need."""
        needed = max(self.store.disk.open_files(), limits.FILES_PER_QUEUE * len(self.broker.queues)) + SCRUBBED
        if self.followers is not None:
            needed += FOLLOWERS_FILES
        return open_files_max() - files_reserve() // 2 - self._other_files - needed - peers

    def _peers(self) -> int:
        passed = self.followers.passed if self.followers is not None else None
        more = passed.more_files if passed is not None else 0
        return len(self.hub.connections) + sum(acceptor.beginning for acceptor in self._acceptors) + more

    def refusal(self) -> str | None:
        """Return why there may be no further connection, "" if there may be one, or None if the peer does not even get an answer."""
        most = self.config.max_connections
        over = 0 if most is None else len(self.hub.connections) + 1 - most
        kept = files_reserve()
        room = self._files_left(self._peers()) - kept // 2
        if over <= 0 and room > 0:
            return ""
        if over > limits.REFUSED_MAX or room <= -kept // 4:
            return None
        return f"the limit of {most} connections is reached" if over > 0 else "there are no file descriptors left"

    def reload(self) -> None:
        """Read the TLS files again (SIGHUP). New connections use them, open ones stay. If they cannot be used, the
        error is logged and the old ones stay."""
        if self._tls is None:
            log.info("nothing to read again: there is no TLS listener")
        else:
            self._tls.reload()

    async def run_until_stopped(self) -> None:
        """Raises Deposed if another node is to lead."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        if self._handing_over is not None:
            await self._handing_over
            raise Deposed("it has handed the lead over")

    def fail(self, error: Exception) -> None:
        """Stop without confirming anything, because the disk cannot be trusted any more (C8)."""
        if self._error is None:
            self._error = error
            self.store.fail(error)
            trace = None if isinstance(error, StoreError) else error
            log.critical("%s; stopping, and nothing more will be confirmed", error, exc_info=trace)
            self._scrubbing.end()
            for connection in list(self.hub.connections):
                connection.transport.abort()
            self._ended.set()

    def step_down(self, why: str) -> None:
        """End at once, as if the process were killed: another node leads, or may. Nothing more is confirmed."""
        if self._error is None:
            self._error = Deposed(why)
            self.store.fail(self._error)
            log.warning("this node leads no more: %s", why)
            self._scrubbing.end()
            if self.followers is not None:
                self.followers.cut()
            self._close_listeners()
            for connection in list(self.hub.connections):
                connection.transport.abort()
            self._ended.set()

    def _close_listeners(self) -> None:
        self._takers.clear()  # what other nodes pass on comes over the listener for followers, which stays a little longer
        for server in self._servers:
            server.close()

    def hand_over(self, successor: str) -> None:
        """End in order, so that another node of the cluster leads: this member, or any if it is "". Then this node follows."""
        if not self._stopping and self._error is None:
            log.info("another node is to lead: %s", successor[:8] or "whichever is first")
            self._successor = successor
            self._handing_over = self._loop.create_task(self.stop())

    async def stop(self) -> None:
        """Close connections, sync everything, and leave the directory in order."""
        if self._stopping:
            return
        self._stopping = True
        self._scrubbing.stop()
        if hasattr(self, "shovels"):
            await self.shovels.stop()
        self._close_listeners()
        for handle in (self._lazy, self._timer, self._beat):
            if handle is not None:
                handle.cancel()
        if self._error is None and self.hub is not None:
            for connection in list(self.hub.connections):
                if connection.state == RUNNING:
                    connection.close(
                        ConnectionError_(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
                    )
                else:
                    connection.finish()
            self.guard(self._do_turn)
            await self._drain()
            await self._trim()
        for task in self._logging_in:
            task.cancel()
        if hasattr(self, "logins"):
            self.logins.close()
            self._heartbeats.stop()
        if self._syncer is not None:
            self._syncer.stop()
            self.store.disk.remover = None
        self._left = True  # jobs of the broker may not be finished, and go on at the next start
        try:
            if self._error is None:
                if self.followers is not None:
                    self.followers.open_gate()
                self.broker.finish()
            if self.followers is not None:
                self.followers.end_copies()
            self.store.shut()
            if self.followers is not None:
                await self.followers.finish(self.store.ended_in_order, self._successor)
        except StoreError as error:
            self._error = self._error or error
            log.critical(
                "%s; the data directory is not left in order, the last settlements may be missing in it", error
            )
        finally:
            self._ended.set()

    async def _drain(self) -> None:
        """Give peers a moment to answer our Close."""
        hands_over = self.tenure is not None and self.tenure.others()
        deadline = self._loop.time() + (HAND_OVER_S if hands_over else DRAIN_S)
        while self.hub.connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.hub.connections):
            connection.transport.abort()
        await self._sync_ended()

    async def _trim(self) -> None:
        """Cut segments off behind their last batch, and sync everything.

        The syncer's threads sync many files at once. `Broker.finish`, which does the same for what is left, syncs one after the other, and
        that takes 0.25 s with 1,000 queues.
        """
        if not self.broker.full:
            self.guard(self.broker.trim)
            self.guard(self.sync_rest)
            await self._sync_ended()

    async def _sync_ended(self) -> None:
        while self.store.commits.busy and self._error is None:
            await asyncio.sleep(0.001)

    # -- turn and sync ---------------------------------------------------------------------------------------

    def log_in(self, attempt: Attempt, checked: Callable[[User | None], None]) -> bool:
        def ended(task: asyncio.Task[User | None]) -> None:
            self._logging_in.discard(task)
            if not task.cancelled():
                self.guard(lambda: checked(task.result()))

        task = self._loop.create_task(self.logins.check(attempt))
        self._logging_in.add(task)
        task.add_done_callback(ended)
        return True

    def watch_heartbeats(self, connection: Connection) -> None:
        self._heartbeats.watch(connection)

    def block(self, reason: str | None, alarm: str) -> None:
        """Block publishers for this reason, and tell them at once. With None they may go on."""
        self.guard(self._block, reason, alarm)

    def _block(self, reason: str | None, alarm: str) -> None:
        self.broker.read_clock()
        self.broker.begin_time()
        self.hub.alarms.block(reason, alarm)
        if reason is not None:
            # a publisher that waits for a confirm publishes nothing more, and a connection is told only when it publishes
            for connection in self.hub.connections:
                if connection.publisher:
                    connection.tell_blocked()
        self.broker.end_time()
        self.schedule()

    # -- once a second ---------------------------------------------------------------------------------------

    def _every_second(self) -> None:
        self._beat = self._loop.call_later(1.0, self._every_second)
        self.guard(self._look_after)

    def _look_after(self) -> None:
        self.broker.read_clock()
        self.broker.begin_time()
        self._beats += 1
        used_s, self._used_s = self._used_s, time.thread_time()
        quiet = self._heard < QUIET_BYTES and self._used_s - used_s < QUIET_S
        self._idle_s = self._idle_s + 1 if quiet else 0
        self._heard = 0
        if (self._idle_s >= IDLE_S or self._watermarks.memory_low) and self._beats >= self._clean_at:
            self._clean_at = self._beats + CLEAN_BEATS
            self.when_idle()
        self._watch.begin(self._beats % GIVE_BACK_BEATS == 0 or self._watermarks.memory_low)
        if self.broker.full:
            self.broker.retry_writes()
            self.schedule()
        if self.followers is not None and self.followers.kept and self.followers.tenure is not None:
            self._look_who_has_better()
        self._watermarks.look()
        short = self.broker.full or self._watermarks.disk_low
        epoch = self.tenure.membership.document.epoch if self.tenure is not None else 0
        self._replaced.look(self.clock.now_ms(), short, epoch)
        if short or self.store.short:
            self.broker.make_room(short)
            self.schedule()
        if self.hub.outputs or self.broker.dirty or self.hub.unfinished():
            self.schedule()
        self.broker.end_time()


def is_damage(error: StoreError) -> bool:
    """Return whether a start has failed because of what is in the files, so that another copy of them may be better."""
    if isinstance(error, (StoreFull, SyncError, UnknownFormat)):
        return False
    cause = error.__cause__
    return not isinstance(cause, OSError) or cause.errno == errno.EIO
