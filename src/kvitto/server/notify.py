"""Tells systemd, or whoever set NOTIFY_SOCKET, that the broker is ready, reads its files again, stops, and is alive.

The protocol is that of sd_notify(3): datagrams with lines NAME=VALUE. `cli.serve` uses it. A message that cannot be sent is
lost: the broker must not wait for its supervisor.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

SHARE = 3
"""The broker says that it is alive this often in the time after which it would be taken for dead."""


class Notify:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        micros, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        meant = micros.isdigit() and pid in ("", str(os.getpid()))
        self.watchdog_s = int(micros) / 1_000_000 if meant else 0.0
        """After this time without a sign of life the supervisor ends the process; 0 means that none watches it."""
        self._alive_at = 0.0

    def ready(self, status: str) -> None:
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._say("STOPPING=1", "STATUS=stopping")

    def alive(self) -> None:
        """Give a sign of life, unless the last one was just now."""
        if self.watchdog_s and time.monotonic() - self._alive_at > self.watchdog_s / (2 * SHARE):
            self._alive_at = time.monotonic()
            self._say("WATCHDOG=1")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give signs of life from the loop: if it is stuck, they stop."""
        if self.watchdog_s and self._address:
            self._say("WATCHDOG=1")
            loop.call_later(self.watchdog_s / SHARE, self.watch, loop)

    @contextmanager
    def while_starting(self) -> Iterator[None]:
        """Give signs of life from a thread. A node of a cluster has said that it is ready long before its broker starts, and the supervisor
        expects these signs from then on."""
        ended = threading.Event()

        def run() -> None:
            while True:
                self._say("WATCHDOG=1")
                if ended.wait(self.watchdog_s / SHARE):
                    return

        if self.watchdog_s and self._address:
            threading.Thread(target=run, name="kvitto-notify", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _say(self, *lines: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # an abstract address begins with a zero byte, which no environment variable can have
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)
