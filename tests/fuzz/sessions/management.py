"""HTTP requests to the management API without sockets: the real listener, its peers and its handlers, on a loop that is turned by hand."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base.config import Config
from kvitto.broker.administration.auth import Attempt, User
from kvitto.http import server as http
from kvitto.protocol.unacked import held
from tests.fuzz.sessions.oracle import Finding

if TYPE_CHECKING:
    from tests.fuzz.sessions.world import StoryRun

ROUNDS = 4
"""Of the loop after each action: enough for a request to come to its answer, or to what it waits for."""


class Loop:
    """One for the process: what a story leaves is cancelled."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def spin(self, rounds: int = ROUNDS) -> None:
        for _ in range(rounds):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()


LOOP = Loop()
CONFIG = Config()


class Logins:
    """Passwords are checked in place: there is no thread whose end would be another each time."""

    async def check(self, attempt: Attempt) -> User | None:
        return attempt.check()


class NoShovels:
    """No process beside the broker runs in a story."""

    def list(self) -> tuple[()]:
        return ()

    def find(self, _vhost: str, _name: str) -> None:
        return None


class Host:
    """What the API needs of the server."""

    def __init__(self, world: StoryRun) -> None:
        self.world = world
        self.config = CONFIG
        self.logins, self.shovels = Logins(), NoShovels()
        self.followers = None
        self.clock = world.clock
        self.started_ms = world.clock.now_ms()
        self.port = self.tls_port = self.http_port = self.https_port = 0
        self.store_path = "nowhere"
        self.pid = 1
        self.uptime_ms = 0
        self.store, self.broker, self.hub = world.harness.store, world.harness.broker, world.harness.hub

    def schedule(self) -> None:
        self.world.due = True

    def held(self, channel: Any, queue: Any) -> Iterator[Any]:
        return held(channel, queue)

    def hand_over(self, successor: str) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


class Writer:
    """Keeps what is answered."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.transport: Any = self

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class Management:
    def __init__(self, world: StoryRun) -> None:
        async def listener() -> http.Listener:
            return http.Listener(Host(world))

        self.world = world
        self.listener = LOOP.loop.run_until_complete(listener())
        self.running: list[tuple[asyncio.Task[None], Writer, str]] = []

    def request(self, data: bytes, what: str) -> None:
        async def run() -> None:
            reader = asyncio.StreamReader()
            reader.feed_data(data)
            reader.feed_eof()
            await http.Peer(self.listener, reader, writer, ("127.0.0.1", 50_000)).run()  # type: ignore[arg-type]

        writer = Writer()
        self.running.append((LOOP.loop.create_task(run()), writer, what))
        self.spin()

    def spin(self) -> None:
        """Go on with what waits. Raises what a handler has raised, AssertionError for an answer that tells of a mistake of ours."""
        if not self.running:
            return
        LOOP.spin()
        for entry in [entry for entry in self.running if entry[0].done()]:
            self.running.remove(entry)
            task, writer, what = entry
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            status = bytes(writer.data[9:12])
            if status == b"500":
                raise Finding(f"{what} is answered by 500: {'; '.join(self.world.catcher.found)}")

    def end(self) -> None:
        for task, _, _ in self.running:
            task.cancel()
        while self.running:
            LOOP.spin()
            self.running = [entry for entry in self.running if not entry[0].done()]


def request(user: str, method: str, path: str, body: bytes) -> bytes:
    """The bytes of one request, the last one of its connection. Each user's password is its name."""
    login = base64.b64encode(f"{user}:{user}".encode()).decode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Basic {login}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
