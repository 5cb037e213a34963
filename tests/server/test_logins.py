"""W7, W8: guessing passwords is slow, costs the others nothing, and locks nobody out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.broker.administration.auth import Attempt, User, Users
from kvitto.server import logins
from kvitto.server.logins import Failures, Logins, network
from kvitto.wire import methods as m
from kvitto.wire.spec import PROTOCOL_HEADER
from tests.http.api import Http
from tests.protocol.raw import Raw


class Door:
    """Logins with cheap hashes and a clock of the test's."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.users = Users(lambda kind, key, value: None, cost=4)
        self.logins = Logins(self.users, lambda: self.now_s)
        self.users.add("ada", "right")
        self.users.add("bob", "right")
        for user in self.users:
            user.proof = b""  # as after a start

    def attempt(self, name: str, password: str, address: str = "10.0.0.1", **how: Callable[[], bool]) -> Attempt:
        return Attempt(self.users, name, password, address, False, **how)

    async def try_(self, name: str, password: str, address: str = "10.0.0.1") -> User | None:
        return await self.logins.check(self.attempt(name, password, address))


def run(story: Callable[[Door], Awaitable[None]]) -> None:
    async def whole() -> None:
        door = Door()
        try:
            await story(door)
        finally:
            door.logins.close()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays that a test can wait for."""
    monkeypatch.setattr(logins, "DELAY_S", 0.001)
    monkeypatch.setattr(logins, "DELAY_MAX_S", 0.02)


def test_refusals_come_later_after_five_failures_of_an_address(caplog: pytest.LogCaptureFixture) -> None:
    async def story(door: Door) -> None:
        for n in range(logins.FREE + 3):
            assert await door.try_(f"user{n}", "guess") is None
            assert door.logins.delayed == max(0, n + 1 - logins.FREE)
        assert door.logins.refused == logins.FREE + 3
        assert caplog.messages == ["6 failed logins from 10.0.0.1: from now on refusals are delayed"]
        assert await door.try_("other", "guess", "10.0.0.2") is None
        assert door.logins.delayed == 3, "another address has not failed yet"
        door.now_s += logins.FORGET_S
        assert await door.try_("user0", "guess") is None
        assert door.logins.delayed == 3, "it is forgotten after a minute"

    run(story)


def test_the_delay_doubles_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "DELAY_S", 0.25)
    monkeypatch.setattr(logins, "DELAY_MAX_S", 4.0)

    async def story(door: Door) -> None:
        delays = [door.logins._delay(f"user{n}", "10.0.0.1") for n in range(12)]
        assert delays == [0.0] * 5 + [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
        assert [door.logins._delay("ada", f"10.1.0.{n}") for n in range(7)] == [0.0] * 5 + [0.25, 0.5]

    run(story)


def test_a_right_password_is_never_delayed() -> None:
    """Nobody locks a user out by guessing: neither by the name nor from the same address."""

    async def story(door: Door) -> None:
        for _ in range(10):
            await door.try_("ada", "guess")
        delayed = door.logins.delayed
        assert await door.try_("ada", "right", "10.0.0.9") is door.users.get("ada")
        assert await door.try_("bob", "right") is door.users.get("bob")
        assert door.logins.delayed == delayed

    run(story)


def test_an_address_has_few_tries_under_way() -> None:
    """While its refusals are delayed it cannot try more on other connections; of very many that wait the rest is refused unread."""

    async def story(door: Door) -> None:
        for _ in range(logins.FREE + 1):
            await door.try_("ada", "guess")
        checked: list[str] = []
        many = [door.attempt("ada", f"guess{n}", wanted=lambda n=n: not checked.append(str(n))) for n in range(100)]  # type: ignore[misc]
        tasks = [asyncio.ensure_future(door.logins.check(attempt)) for attempt in many]
        await asyncio.sleep(0)
        assert len(checked) <= logins.AT_ONCE
        for task in tasks:
            assert await task is None
        assert len(checked) == logins.AT_ONCE + logins.WAITING_MAX
        assert not door.logins._gates

    run(story)


def test_a_restart_with_very_many_clients_costs_one_hash() -> None:
    """All come from one address and wait for the first: then the password is known."""

    async def story(door: Door) -> None:
        found = await asyncio.gather(*(door.try_("ada", "right") for _ in range(500)))
        assert set(found) == {door.users.get("ada")}
        assert door.logins.refused == 0

    run(story)


def test_whoever_has_gone_is_not_checked() -> None:
    async def story(door: Door) -> None:
        assert await door.logins.check(door.attempt("ada", "right", wanted=lambda: False)) is None
        assert door.logins.refused == 0 and door.users.get("ada").proof == b""

    run(story)


def test_what_is_remembered_of_failures_is_bounded() -> None:
    failures = Failures(lambda: 0.0)
    for n in range(logins.KEPT + 10):
        failures.add(str(n))
    assert len(failures) == logins.KEPT
    assert failures.count("0") == 0 and failures.count(str(logins.KEPT)) == 1


@pytest.mark.parametrize(
    ("address", "one"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7%eth0", "2001:db8:1:2::/64"),
        ("local", "local"),
    ],
)
def test_an_ipv6_peer_has_64_bits_to_choose_from(address: str, one: str) -> None:
    assert network(address) == one


# -- over sockets --------------------------------------------------------------------------------------------


@contextmanager
def guessing(port: int, threads: int) -> Iterator[list[int]]:
    """So many who try wrong passwords again and again, until the end of the block; gives how many refusals came."""
    stopping, refused = threading.Event(), [0]

    def guess() -> None:
        while not stopping.is_set():
            try:
                with Raw(port, login=False) as raw:
                    raw.send(PROTOCOL_HEADER)
                    raw.expect(m.ConnectionStart)
                    able: dict[str, Any] = {"capabilities": {"authentication_failure_close": True}}
                    raw.put(0, m.ConnectionStartOk(able, "PLAIN", b"\0guest\0" + str(refused).encode(), "en_US"))
                    raw.expect(m.ConnectionClose)
                    refused[0] += 1
            except (OSError, AssertionError):
                pass

    guessers = [threading.Thread(target=guess) for _ in range(threads)]
    for thread in guessers:
        thread.start()
    try:
        yield refused
    finally:
        stopping.set()
        for thread in guessers:
            thread.join()


@pytest.mark.slow
def test_others_work_while_somebody_guesses(tmp_path: Path) -> None:
    """Slow hashes are made in threads: round trips go on, over HTTP too, and who is known comes in at once."""
    with kvitto.Broker(tmp_path, http_port=0) as broker, Raw(broker.port) as raw:
        raw.channel(1)
        assert broker._server is not None
        before = time.monotonic()
        broker._server.broker.users.set_password("guest", "guest")  # slow: the first hash of a new directory is not
        hashing = time.monotonic() - before
        spans = []
        with guessing(broker.port, 4) as refused:
            while not refused[0]:
                before = time.monotonic()
                raw.declare("q", durable=False)
                spans.append(time.monotonic() - before)
            with Raw(broker.port) as known:
                known.channel(1)
            assert Http(broker.http_url).call("GET", "/api/whoami").status == 200
        assert sorted(spans)[len(spans) // 2] < hashing
        server = broker._server.logins
        assert server.refused > 0
        metrics = Http(broker.http_url).call("GET", "/metrics").body.decode()
        assert f"\nkvitto_logins_refused_total {server.refused}\n" in metrics
        assert f"\nkvitto_logins_delayed_total {server.delayed}\n" in metrics


def test_http_refusals_count_and_wait_too(tmp_path: Path) -> None:
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        assert broker._server is not None
        broker._server.broker.users.cost = 4
        api = Http(broker.http_url)
        for n in range(logins.FREE + 2):
            assert api.as_user("nobody", f"guess{n}").call("GET", "/api/whoami").status == 401
        assert (broker._server.logins.refused, broker._server.logins.delayed) == (logins.FREE + 2, 2)
