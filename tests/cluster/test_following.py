"""A follower's connection: how long it waits for its leader."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kvitto.cli import following
from kvitto.cli.following import REFUSED_S, SILENCE_S, Patience, talk
from kvitto.cluster.follower import Follower
from kvitto.cluster.handshake import Refused
from kvitto.cluster.records import StreamError


class Scene:
    """A clock, a socket that has something now and then, and a follower to which nothing of that is a whole record."""

    def __init__(self, waits_s: float, works_s: float) -> None:
        """Something comes after `waits_s`, and the follower is busy with it for `works_s`."""
        self.now, self.left = 0.0, 4
        self.heard, self.damage = 0, ""
        self.alive = 0
        self._waits_s, self._works_s = waits_s, works_s

    def monotonic(self) -> float:
        return self.now

    def begin(self) -> bytes:
        return b""

    def feed(self, _data: bytes) -> Iterator[bytes]:
        for _ in range(10):
            self.now += self._works_s / 10
            yield b""

    def recv(self, _most: int) -> bytes:
        self.now += self._waits_s
        self.left -= 1
        return b"a part" if self.left else b""

    def sendall(self, _data: bytes) -> None:
        pass

    settimeout = setsockopt = lambda *_: None
    family = socket.AF_UNIX

    def lives(self) -> None:
        self.alive += 1


def talk_in(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(following, "time", scene)
    return talk(cast(Follower, scene), cast(Any, scene), alive=scene.lives)


def test_the_time_for_checksums_of_all_files_is_not_the_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(waits_s=0.25, works_s=100 * SILENCE_S)
    assert talk_in(scene, monkeypatch) == "the leader has closed the connection"
    assert scene.alive == 33, "whoever watches the process sees that it is alive"


def test_a_leader_that_sends_no_whole_record_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StreamError, match="no whole record"):
        talk_in(Scene(waits_s=0.6 * SILENCE_S, works_s=0), monkeypatch)


def test_a_node_that_may_be_taken_for_its_own_earlier_process_tries_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    patience, again = Patience(), Refused("a copy", again=True)
    for _ in range(3):
        assert patience.bear(again) == "a copy"
        now += REFUSED_S / 3
    now += 2 * REFUSED_S
    assert patience.bear(again) == "a copy", "it was accepted meanwhile"
    for _ in range(3):
        now += REFUSED_S / 3
        patience.bear(again)
    now += 1
    with pytest.raises(Refused, match="a copy"):
        patience.bear(again)
    with pytest.raises(Refused, match="another key"):
        Patience().bear(Refused("another key"))
