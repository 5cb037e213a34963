"""What a supervisor hears from `kvitto serve`, over a real socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitto.server.notify import Notify
from tests.cli.process import serving

TIMEOUT_S = 20.0


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(TIMEOUT_S)
        yield listening


def hear(supervisor: socket.socket, word: str) -> str:
    """The first message that has this word; signs of life may come between."""
    while True:
        message = supervisor.recv(4096).decode()
        if word in message:
            return message


def test_a_supervisor_is_told_of_start_reload_life_and_end(
    tmp_path: Path, supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "60000")
    with serving(tmp_path / "data") as server:
        first = supervisor.recv(4096).decode().splitlines()
        assert first[0] == "READY=1" and first[1].startswith("STATUS=kvitto ready amqp=127.0.0.1:")
        for _ in range(3):
            hear(supervisor, "WATCHDOG=1")
        before = time.monotonic_ns()
        server.process.send_signal(signal.SIGHUP)
        reloading = hear(supervisor, "RELOADING=1")
        assert int(reloading.partition("MONOTONIC_USEC=")[2]) >= before // 1000
        hear(supervisor, "READY=1")
        server.process.terminate()
        hear(supervisor, "STOPPING=1")
        assert server.process.wait(TIMEOUT_S) == 0


def test_a_loop_that_is_stuck_gives_no_sign_of_life(tmp_path: Path, supervisor: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    supervisor.setblocking(False)

    def silent() -> bool:
        try:
            supervisor.recv(4096)
        except BlockingIOError:
            return True
        return False

    async def live() -> None:
        loop = asyncio.get_running_loop()
        Notify(environ).watch(loop)
        for _ in range(3):
            assert await loop.sock_recv(supervisor, 100) == b"WATCHDOG=1"
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass  # what the loop does here, it does instead of everything else
        assert silent()

    asyncio.run(live())


def test_a_start_that_takes_long_gives_signs_of_life(supervisor: socket.socket) -> None:
    """A node of a cluster has said that it is ready long before its broker starts."""
    address = supervisor.getsockname()
    notify = Notify({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000"})
    with notify.while_starting():
        assert [supervisor.recv(100) for _ in range(3)] == 3 * [b"WATCHDOG=1"]


@pytest.mark.parametrize("address", ["", "nonsense", "/nowhere/socket", "@kvitto-nobody-listens", "/" + "x" * 500])
def test_without_a_supervisor_nothing_happens(address: str) -> None:
    notify = Notify({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "soon"})
    notify.ready("here")
    notify.stopping()
    assert notify.watchdog_s == 0


def test_the_watchdog_of_another_process_is_not_meant() -> None:
    assert Notify({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s == 0


@pytest.mark.skipif(not Path("/proc").exists(), reason="abstract addresses are Linux's")
def test_an_abstract_address_is_reached() -> None:
    name = f"kvitto-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        Notify({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert listening.recv(100) == b"STOPPING=1\nSTATUS=stopping"
