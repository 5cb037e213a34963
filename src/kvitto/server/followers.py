"""The listener for followers: one connection each, which gets the stream of operations of the data directory (docs/adr/0032).

`cluster/link.py` says what is sent; this moves the bytes. A follower that does not read holds up nothing but its own connection, which
keeps at most BUFFER_BYTES for it. `Server` calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kvitto.base.config import Config, address
from kvitto.base.errors import StoreError
from kvitto.cluster.gate import Gate, in_sync
from kvitto.cluster.handshake import Refused, read_key
from kvitto.cluster.link import Behind, Leader, Link
from kvitto.cluster.records import CHUNK_BYTES, Kind, StreamError
from kvitto.cluster.ring import Ring
from kvitto.cluster.state import begin_history
from kvitto.cluster.tapping import TapDisk
from kvitto.server.listening import bind, in_url
from kvitto.store.commit import Commit, GroupCommit
from kvitto.store.disk import Disk

log = logging.getLogger("kvitto")

LINKS_MAX = 16
READ_BYTES = 64 << 10
BUFFER_BYTES = 1 << 20
HANDSHAKE_S = 10.0
SILENCE_MS = 60_000
"""A connection whose peer has acknowledged nothing that was sent for so long is broken."""
TIME_S = 0.25
SHOW_S = 60.0
SHOW_BYTES = 1 << 20
"""A follower that is further behind than this is logged every SHOW_S."""
FINISH_S = 5.0
"""At the end a follower gets this much time to take what is left."""
LOOK_S = 0.02


class Followers:
    def __init__(self, config: Config, disk: Disk) -> None:
        assert config.cluster_key is not None
        self.ring = Ring()
        self.disk = TapDisk(disk, self.ring)
        self._host, self._wanted = address(config.followers)
        self._leader = Leader(self.disk, self.ring, read_key(config.cluster_key))
        self.port = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._wakes: dict[Link, asyncio.Event] = {}
        self._server: asyncio.Server | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._seen = self._shown = 0
        self._reader = ThreadPoolExecutor(1, "kvitto-followers")
        self._needed = config.min_in_sync - 1
        """How many followers have to be in sync before anything is confirmed."""
        self._gate: Gate | None = None
        self._commits: GroupCommit
        self._synced = 0
        """The place of the stream behind the latest sync point."""
        self._block: Callable[[str | None, str], None] = nobody

    @property
    def address(self) -> str:
        return f"{in_url(self._host)}:{self.port}"

    @property
    def links(self) -> list[Link]:
        """The connections that have proved that they have the key."""
        return [link for link in self._leader.links if link.member]

    def begin(self, commits: GroupCommit) -> None:
        """Begin, now that this process owns the directory. Followers are told of the sync of each commit."""
        self._leader.history = begin_history(self.disk)

        def begun(commit: Commit) -> None:
            before = self.ring.next
            self.disk.sync_point(commit.files, commit.dirs)
            if self.ring.next > before:
                self._synced = self.ring.next
            if self._gate is not None:
                self._gate.begun(commit.number, self._synced)

        self._commits = commits
        commits.begun = begun

    # -- who has to be in sync ---------------------------------------------------------------------------------------

    async def wait_in_sync(self) -> None:
        """Wait until enough followers have all that is here. Nobody may be told of it before (R5)."""
        if not self._needed:
            return
        log.info("followers are accepted at %s; clients are served when %s", self.address, few(self._needed))
        place = self._tell_time() + 1
        while sum(link.acknowledged >= place for link in in_sync(self.links)) < self._needed:
            await asyncio.sleep(LOOK_S)

    def close_gate(self, allow: Callable[[int | None], None], block: Callable[[str | None, str], None]) -> None:
        """From now on have only those commits announced that enough followers have synced, and block publishers while there are fewer."""
        if self._needed:
            self._gate, self._block = Gate(self._needed, allow), block
            allow(self._commits.syncs)

    def open_gate(self) -> None:
        """There are no clients any more who could be told anything."""
        self._gate = None
        self._commits.allow(None)

    def _look_who_is_in_sync(self) -> None:
        if self._gate is None:
            return
        count = len(in_sync(self.links))
        text = f"low on followers: {count} in sync, and nothing is confirmed before {few(self._needed)}"
        self._block(text if count < self._needed else None, "followers")

    async def listen(self) -> None:
        """Listen for followers. Raise OSError if that is not possible."""
        sockets = await bind([self._host], self._wanted)
        self.port = sockets[0].getsockname()[1]
        self._server = await asyncio.start_server(self._accepted, sock=sockets[0], backlog=LINKS_MAX)
        for more in sockets[1:]:
            more.close()
        self.ring.on_put = self._wake
        self._every_time()

    def _every_time(self) -> None:
        """Four times a second: show followers that the leader is there, and log those that are behind once a minute."""
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(TIME_S, self._every_time)
        self._look_who_is_in_sync()
        if self._leader.links and self._seen == self.ring.next:
            self._tell_time()
        self._seen = self.ring.next
        self._shown += 1
        if self._shown * TIME_S >= SHOW_S:
            self._shown = 0
            for link in self.links:
                if (lag := link.lag_bytes) is None:
                    log.info("follower %s is %s: %d of %d files", link.where, link.state, link.files_done, link.files)
                elif lag > SHOW_BYTES:
                    log.info("follower %s is %.1f MiB behind", link.where, lag / (1 << 20))

    def _tell_time(self) -> int:
        """Put a TIME record into the ring. Returns its place."""
        return self.ring.put(Kind.TIME, 0, int(time.time() * 1000), ())

    def _wake(self) -> None:
        for event in self._wakes.values():
            event.set()

    async def finish(self) -> None:
        """Have followers sync what is left, and end their connections."""
        if self._server is not None:
            self._server.close()
        if self._beat is not None:
            self._beat.cancel()
        end = self._tell_time() + 1  # they sync all, and say so
        deadline = time.monotonic() + FINISH_S
        while time.monotonic() < deadline and any(
            link.state == "following" and not link.replaced and link.acknowledged < end for link in self.links
        ):
            await asyncio.sleep(0.01)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reader.shutdown(wait=False)

    # -- one connection ----------------------------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername") or ("?", 0)
        link = Link(self._leader, f"{in_url(str(peer[0]))}:{peer[1]}")
        if len(self._leader.links) >= LINKS_MAX:
            log.warning("follower %s: there are %d already, it is not accepted", link.where, LINKS_MAX)
            writer.close()
            return
        self._leader.links.append(link)
        wake = self._wakes[link] = asyncio.Event()
        receiving = asyncio.get_running_loop().create_task(self._receive(reader, link, wake))
        try:
            set_up(writer)
            await self._send(link, writer, wake, receiving)
        except Behind:
            log.warning("follower %s is too far behind, and has to compare its files again", link.where)
        except (Refused, StreamError) as error:
            log.warning("follower %s: %s", link.where, error)
            writer.write(link.last_words)
        except (OSError, EOFError) as error:
            if link.member:
                log.warning("follower %s is gone: %s", link.where, error or "it has closed the connection")
            else:
                log.info("%s is gone before it was a follower; does it have the same key?", link.where)
        except StoreError as error:
            log.error("follower %s cannot be served: %s", link.where, error)
        except Exception:  # whatever is wrong with one connection, the broker goes on
            log.exception("follower %s cannot be served", link.where)
        finally:
            receiving.cancel()
            self._leader.links.remove(link)
            del self._wakes[link]
            writer.close()

    async def _receive(self, reader: asyncio.StreamReader, link: Link, wake: asyncio.Event) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                link.take(data)
                if self._gate is not None:
                    self._gate.look(self.links)
                wake.set()
            raise EOFError
        finally:
            wake.set()

    async def _send(
        self, link: Link, writer: asyncio.StreamWriter, wake: asyncio.Event, receiving: asyncio.Task[None]
    ) -> None:
        loop = asyncio.get_running_loop()
        began, state = loop.time(), link.state
        while not link.replaced:
            if receiving.done():
                receiving.result()
            if link.prefetch is not None:
                path, at = link.prefetch
                await loop.run_in_executor(self._reader, read_ahead, os.path.join(self.disk.root, path), at)
            data = link.give()
            if data:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0)  # `drain` does not let others run while there is room
            elif not link.wants:
                wake.clear()
                left = None if link.member else max(began + HANDSHAKE_S - loop.time(), 0)
                await asyncio.wait_for(wake.wait(), left)
            if link.state != state:
                state = link.state
                log.info("follower %s is %s", link.where, state)


def few(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} in sync"


def nobody(_reason: str | None, _alarm: str) -> None:
    """Nobody is blocked because of followers."""


def set_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.set_write_buffer_limits(BUFFER_BYTES)
    sock = writer.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # asyncio does it only where the socket names its protocol
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)


def read_ahead(full: str, at: int) -> None:
    """Read a chunk, so that the loop finds it in the system's cache. The file may be gone."""
    with contextlib.suppress(OSError):
        fd = os.open(full, os.O_RDONLY)
        try:
            os.pread(fd, CHUNK_BYTES, at)
        finally:
            os.close(fd)
