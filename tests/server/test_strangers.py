"""Connections without the key: each reason of each host is logged, and none of them often."""

from __future__ import annotations

import logging

import pytest

from kvitto.server import strangers as module
from kvitto.server.strangers import EVERY_S, HOSTS_MAX, REASONS_MAX, Strangers


class Scene:
    """Strangers, with a clock that is set by hand."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 1000.0
        self._caplog = caplog
        self.strangers = Strangers()

    def monotonic(self) -> float:
        return self.now

    def come(self, count: int, host: str = "10.0.0.9", why: str = "no key") -> None:
        for port in range(1, 1 + count):
            self.strangers.tell(logging.WARNING, f"{host}:{port}", why)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.strangers.look()

    def said(self) -> list[str]:
        """What was logged since the last call."""
        found = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return found


@pytest.fixture
def scene(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Scene:
    found = Scene(caplog)
    monkeypatch.setattr(module, "time", found)
    return found


def test_the_same_reason_of_the_same_host_is_said_once_and_counted_after_a_while(scene: Scene) -> None:
    scene.come(100)
    scene.later(EVERY_S - 1)
    scene.come(20)
    assert scene.said() == ["follower 10.0.0.9:1: no key"]
    scene.later(1)
    assert scene.said() == ["follower 10.0.0.9: no key (119 times more since the last line of this)"]
    scene.come(3)
    scene.later(EVERY_S - 1)
    assert scene.said() == []
    scene.later(1)
    assert scene.said() == ["follower 10.0.0.9: no key (3 times more since the last line of this)"]


def test_another_host_and_another_reason_are_said_at_once(scene: Scene) -> None:
    scene.come(2)
    scene.come(2, why="no name")
    scene.come(2, host="10.0.0.8")
    assert scene.said() == [
        "follower 10.0.0.9:1: no key",
        "follower 10.0.0.9:1: no name",
        "follower 10.0.0.8:1: no key",
    ]


def test_what_has_not_come_again_is_forgotten_and_said_anew(scene: Scene) -> None:
    scene.come(1)
    scene.later(EVERY_S)
    assert not scene.strangers._hosts
    scene.come(1)
    assert scene.said() == ["follower 10.0.0.9:1: no key"] * 2


def test_many_reasons_and_many_hosts_are_few_lines_and_little_memory(scene: Scene) -> None:
    for number in range(1000):
        scene.come(1, why=f"a message of {number} bytes")
    assert len(scene.said()) == REASONS_MAX + 1
    for number in range(1000):
        scene.come(1, host=f"10.1.{number // 250}.{number % 250}")
    assert len(scene.said()) == HOSTS_MAX
    assert len(scene.strangers._hosts) == HOSTS_MAX + 1
    scene.later(EVERY_S)
    said = scene.said()
    assert f"follower 10.0.0.9: other reasons ({1000 - REASONS_MAX - 1} times more since the last line of this)" in said
    assert f"follower other hosts: no key ({1000 - HOSTS_MAX} times more since the last line of this)" in said
