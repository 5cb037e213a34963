"""What goes on around: turns, syncs, time in both directions, a full disk, alarms, and ends of the process."""

from __future__ import annotations

from tests.fuzz.sessions.grammar.base import Grammar
from tests.fuzz.sessions.story import Action


def turn(_: Grammar) -> list[Action]:
    return [("turn",)]


def sync(g: Grammar) -> list[Action]:
    return [g.one(("sync",), ("sync",), ("begin_sync", 0), ("begin_sync", 1), ("end_sync",))]


def time(g: Grammar) -> list[Action]:
    return [("time", g.one(0.0, 0.001, 0.002, 0.1, 0.5, 1.0, 1.0, 3.0, 10.0, 70.0, 4000.0))]


def until_timer(g: Grammar) -> list[Action]:
    """Just so long that the next timer is due."""
    due = g.world.harness.broker.timers.next_ms
    if due is None:
        return []
    return [("time", max(due - g.world.clock.now_ms(), 0) / 1000)]


def set_clock(g: Grammar) -> list[Action]:
    return [("clock", g.one(-3_600_000, -5000, -100, -1, 100, 5000, 3_600_000))]


def disk(g: Grammar) -> list[Action]:
    return [] if g.world.disk.full else [("full", 1)]


def room(g: Grammar) -> list[Action]:
    """The disk has room again, and no alarm lasts."""
    over: list[Action] = [("full", 0)] if g.world.disk.full else []
    return over + [("block", alarm, 0) for alarm in g.world.harness.hub.alarms.reasons if alarm != "room"]


def alarm(g: Grammar) -> list[Action]:
    return [("block", g.one("disk", "memory"), 1)]


def restart(g: Grammar) -> list[Action]:
    return [("restart", g.one("order", "kill", "kill", "power"), g.rng.randrange(1 << 16))] if g.chance(0.3) else []


THEME = [
    (1, turn),
    (5, sync),
    (2, time),
    (2, until_timer),
    (0.3, set_clock),
    (0.3, disk),
    (0.2, alarm),
    (2, room),
    (0.3, restart),
]
