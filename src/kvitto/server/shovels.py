"""The shovels of this broker: parameters of the component `shovel`, carried out by one process beside the broker (adr/0029).

The process exists while there is a shovel, and is started again if it ends. What it says of each shovel is kept here for
the management API. A shovel that has carried what it should (`src-delete-after`) is deleted with its parameter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvitto.broker.administration.parameters import Component, InvalidParameter
from kvitto.server.listening import in_url
from kvitto.shovel.settings import COMPONENT, END, SettingsError, read

if TYPE_CHECKING:
    from kvitto.server.server import Server

log = logging.getLogger("kvitto")

SHOVELS_MAX = 1000
LINE_MAX = 1 << 20
STOP_S = 3.0
AGAIN_S, AGAIN_MAX_S = 1.0, 30.0
AT_ONCE = 32
"""After this many orders or states the loop serves others."""

Key = tuple[str, str]
"""The virtual host and the name."""
Item = tuple[str, str, Any, dict[str, Any]]
"""The virtual host, the name, the value and the state."""
STARTING = {"state": "starting", "reason": ""}


class Shovels:
    """The shovels of one broker. They are registered before the listeners open, and run from `start` on, which is called after that."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._values: dict[Key, Any] = {}
        self._states: dict[Key, dict[str, Any]] = {}
        self._edition = 0
        self._editions: dict[Key, int] = {}
        """The number of the last order for each shovel. A state that comes with an earlier number is ignored."""
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = False

    def register(self) -> None:
        """Have the broker call this object when a parameter of the component is checked, set or cleared."""
        component = Component(self._check, self._set, self._clear)
        self._server.broker.parameters.register(COMPONENT, component)

    def start(self) -> None:
        """From now on this broker can be reached, so shovels may run."""
        self._ready = True
        self._run_if_needed()

    async def stop(self) -> None:
        """End the process in order, or at once if it does not end in time."""
        self._ready = False
        task, self._task = self._task, None
        if task is None:
            return
        if self._process is None:  # it is being started, or the task waits before it starts another one
            task.cancel()
        else:
            end(self._process)
        if not (await asyncio.wait([task], timeout=STOP_S))[0]:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # -- for the management API

    def list(self) -> Iterator[Item]:
        """Yield all shovels, sorted by virtual host and name."""
        for key, value in sorted(self._values.items()):
            yield self._item(key, value)

    def find(self, vhost: str, name: str) -> Item | None:
        key = (vhost, name)
        return self._item(key, self._values[key]) if key in self._values else None

    def _item(self, key: Key, value: Any) -> Item:
        return *key, value, self._states.get(key, STARTING)

    def restart(self, vhost: str, name: str) -> None:
        """Let a shovel begin again at once, without the pause behind a failure."""
        self._tell((vhost, name))

    # -- parameters

    def _check(self, vhost: str, name: str, value: Any) -> None:
        try:
            read(value)
        except SettingsError as error:
            raise InvalidParameter(f"shovel {name!r}: {error}") from None
        if (vhost, name) not in self._values and len(self._values) >= SHOVELS_MAX:
            raise InvalidParameter(f"there are {SHOVELS_MAX} shovels, and may be no more")

    def _set(self, vhost: str, name: str, value: Any) -> None:
        self._values[vhost, name] = value
        self._states.pop((vhost, name), None)
        self._tell((vhost, name))
        self._run_if_needed()

    def _clear(self, vhost: str, name: str) -> None:
        self._values.pop((vhost, name), None)
        self._states.pop((vhost, name), None)
        self._tell((vhost, name))
        self._editions.pop((vhost, name), None)

    # -- the process

    def _run_if_needed(self) -> None:
        if self._ready and self._values and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="kvitto shovels")

    async def _run(self) -> None:
        """Keep the process running while there are shovels."""
        pause_s = AGAIN_S
        while self._values:
            began = asyncio.get_running_loop().time()
            try:
                code: int | str = await self._once()
            except OSError as error:
                code = f"it cannot be started: {error.strerror}"
            if not self._values or not self._ready:
                break
            if asyncio.get_running_loop().time() - began > AGAIN_MAX_S:
                pause_s = AGAIN_S
            log.error("the process of the shovels has ended (%s); another one starts in %g s", code, pause_s)
            for key in self._values:
                self._states[key] = {"state": "starting", "reason": f"the process of the shovels has ended ({code})"}
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MAX_S)
        self._task = None

    async def _once(self) -> int:
        """Run one process, and return its exit code."""
        command = (sys.executable, "-m", "kvitto.shovel")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=pipe,
            stdout=pipe,
            limit=LINE_MAX,
            start_new_session=True,  # an interrupt in the terminal is for the broker, which ends it in order
        )
        self._process = process
        assert process.stdout is not None and process.stdin is not None
        try:
            for number, key in enumerate(list(self._values), 1):
                self._tell(key)
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            number = 0
            while line := await process.stdout.readline():
                self._heard(json.loads(line))
                number += 1
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            return await process.wait()
        finally:
            self._process = None
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()  # until its pipes are closed too

    def _tell(self, key: Key) -> None:
        """Tell the process what a shovel is now."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return
        vhost, name = key
        self._edition += 1
        self._editions[key] = self._edition
        order: dict[str, Any] = {"vhost": vhost, "name": name, "edition": self._edition}
        if key in self._values:
            user, password = self._server.broker.users.lend(vhost)
            order |= {"value": self._values[key], "address": self._address(), "login": [user, password]}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        if not self._values:
            end(process)

    def _address(self) -> str:
        """Return the host and port at which this broker listens, in the form of a URI."""
        host = self._server.config.hosts[0]
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{in_url(host)}:{self._server.port}"

    def _heard(self, state: dict[str, Any]) -> None:
        key = (state["vhost"], state["name"])
        if state.pop("edition") != self._editions.get(key):
            return
        before = self._states.get(key, STARTING)
        if state["state"] == "terminated" and (before["state"], before["reason"]) != (state["state"], state["reason"]):
            log.warning("shovel '%s' in vhost '%s' is terminated: %s", key[1], key[0], state["reason"])
        self._states[key] = state
        if state["done"]:
            self._server.guard(lambda: self._delete(key))

    def _delete(self, key: Key) -> None:
        """Delete a shovel that has carried what it should."""
        self._server.broker.parameters.clear(key[0], COMPONENT, key[1])
        self._server.schedule()


def end(process: asyncio.subprocess.Process) -> None:
    """Tell the process to end in order. Without this order it takes the end of its stdin for the broker's death."""
    assert process.stdin is not None
    if not process.stdin.is_closing():
        process.stdin.write(json.dumps(END).encode() + b"\n")
        process.stdin.close()
