"""The process of a broker's shovels (adr/0029): `python -m kvitto.shovel`, started by `server/shovels.py`.

It reads orders from stdin and writes states to stdout, each a JSON object in a line. It ends when stdin does, in order if the
broker has said so before, at once if the broker has died: the next broker starts another process, and two would carry the same
messages. Nothing is stored here: the broker tells all shovels to a new process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from kvitto.shovel.settings import END, SettingsError, read
from kvitto.shovel.worker import Shovel, Status

LINE_MAX = 16 << 20
log = logging.getLogger("kvitto.shovel")

STOP_S = 2.5
"""The longest time for the shovels to end in order."""
REPORT_S = 0.25
"""The least time between two reports on a shovel."""

Key = tuple[str, str]


class Local(NamedTuple):
    """How this broker is reached, for a shovel whose URI names no host: with a login for its own virtual host only."""

    vhost: str
    address: str
    user: str
    password: str

    def uri(self, given: str) -> str:
        wanted = unquote(urlsplit(given).path[1:]) or "/"
        own = quote(self.vhost, safe="")
        if wanted != self.vhost:
            raise ValueError(
                f"a URI without host reaches only the shovel's own vhost '{self.vhost}', not '{wanted}': "
                f"write amqp:///{own}, or give user, password and host"
            )
        return f"amqp://{self.user}:{self.password}@{self.address}/{own}"


class Shovels:
    """The shovels that run in this process."""

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._editions: dict[Key, int] = {}
        """The edition of the last order on each shovel. What still comes of an earlier one is not reported."""
        self._ending: set[asyncio.Task[None]] = set()
        """The tasks of shovels that were deleted or replaced, as long as they have not ended."""
        self._said: dict[Key, float] = {}
        """When each shovel was reported on."""
        self._later: dict[Key, asyncio.TimerHandle] = {}

    def obey(self, order: dict[str, Any]) -> None:
        """Do what the broker says: begin a shovel if it comes with a value, else end it."""
        key: Key = (order["vhost"], order["name"])
        task = self._tasks.pop(key, None)
        self._forget(key)
        self._editions[key] = order["edition"]
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if "value" in order:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._run(key, order, task))

    async def _run(self, key: Key, order: dict[str, Any], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        (vhost, name), edition = key, order["edition"]
        try:
            settings = read(order["value"])
        except SettingsError as error:  # of another version: the broker has checked what is set now
            self._tell_now(key, edition, Status("terminated", str(error), since=time.time()))
            return
        if settings.paused:
            self._tell_now(key, edition, Status("paused", since=time.time()))
            return
        local = Local(vhost, order["address"], *order["login"])
        shovel = Shovel(vhost, name, settings, local.uri, lambda status: self._tell(key, edition, status))
        await shovel.run()
        self._tell_now(key, edition, shovel.status, done=True)

    def _tell(self, key: Key, edition: int, status: Status) -> None:
        """Report a state, at most once in REPORT_S: the last one counts."""
        if key not in self._later and edition == self._editions[key]:
            loop = asyncio.get_running_loop()
            at = max(loop.time(), self._said.get(key, 0.0) + REPORT_S)
            self._later[key] = loop.call_at(at, lambda: self._tell_now(key, edition, status))

    def _tell_now(self, key: Key, edition: int, status: Status, *, done: bool = False) -> None:
        if edition != self._editions[key]:
            return
        self._forget(key)
        self._said[key] = asyncio.get_running_loop().time()
        said = {"vhost": key[0], "name": key[1], "edition": edition, "done": done, **asdict(status)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    def _forget(self, key: Key) -> None:
        self._said.pop(key, None)
        if (handle := self._later.pop(key, None)) is not None:
            handle.cancel()

    async def stop(self) -> None:
        """End all shovels, and wait for those that have a load on its way."""
        for task in self._tasks.values():
            task.cancel()
        if tasks := {*self._tasks.values(), *self._ending}:
            await asyncio.wait(tasks, timeout=STOP_S)


async def serve() -> None:
    """Obey until stdin ends, then end the process, even if something in it hangs."""
    reader = asyncio.StreamReader(limit=LINE_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    shovels, code = Shovels(), 0
    try:
        while line := await reader.readline():
            order = json.loads(line)
            if order == END:
                await shovels.stop()
                break
            shovels.obey(order)
    except Exception:
        log.exception("the process of the shovels has met a bug")
        code = 1
    finally:
        os._exit(code)


def main() -> None:
    logging.getLogger("kvitto.client").addHandler(logging.NullHandler())
    # a service manager sends it to all processes of the service, and the broker says when its shovels end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve())
