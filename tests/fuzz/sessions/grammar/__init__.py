"""The next actions of a story: each story has a few themes more than others, and a scene to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING

from kvitto.wire import methods as m
from tests.fuzz.sessions.grammar import (
    connections,
    consuming,
    managing,
    odd,
    publishing,
    surroundings,
    together,
    topology,
)
from tests.fuzz.sessions.grammar.base import ARGUMENTS, Grammar, encoded
from tests.fuzz.sessions.story import Action

if TYPE_CHECKING:
    from tests.fuzz.sessions.world import StoryRun

Rule = Callable[[Grammar], list[Action]]
THEMES: tuple[tuple[float, Sequence[tuple[float, Rule]]], ...] = (
    (1.0, connections.THEME),
    (0.5, topology.THEME),
    (1.5, publishing.THEME),
    (2.5, consuming.THEME),
    (0.3, together.THEME),
    (1.2, surroundings.THEME),
    (0.2, managing.THEME),
    (0.02, odd.THEME),
)
"""How often each theme comes where a story does not prefer it."""
PREFERRED = 6.0
LENGTHS = (20, 50, 50, 100, 200)


def actions(seed: int, world: StoryRun) -> Iterator[Action]:
    """A story: what comes next depends on what has happened, so each action is performed before the next is asked for."""
    rng = Random(f"{seed} story")
    g = Grammar(rng, world)
    favourites = rng.sample(range(len(THEMES)), 2)
    rules: list[Rule] = []
    weights: list[float] = []
    for i, (theme_weight, theme) in enumerate(THEMES):
        for weight, rule in theme:
            rules.append(rule)
            # within a story some things happen all the time and others never
            weights.append(weight * theme_weight * (PREFERRED if i in favourites else 1) * rng.choice((0, 1, 1, 3)))
    yield from scene(g)
    for _ in range(rng.choice(LENGTHS)):
        yield from needed(g)
        (rule,) = rng.choices(rules, weights)
        yield from rule(g)


def needed(g: Grammar) -> list[Action]:
    """Mostly somebody is there and can go on."""
    if not any(g.anywhere()) and g.chance(0.7):
        return connections.clear_away(g) + connections.open_channel(g)
    return []


def scene(g: Grammar) -> list[Action]:
    """Two peers, some queues, confirms."""
    declares = [m.QueueDeclare(name, durable=True, arguments=g.one(*ARGUMENTS[name])) for name in g.cast]
    frame_max = g.one(131072, 131072, 4096)
    found: list[Action] = []
    for slot in (0, 1):
        found.append(("connect", slot, "guest", "/", frame_max if slot else 131072, g.rng.randrange(16), 0))
        found.append(("send", slot, 0, encoded(1, m.ChannelOpen()) + encoded(2, m.ChannelOpen())))
        found.append(("turn",))
    found.append(("send", 0, 0, encoded(1, m.ConfirmSelect(), *declares)))
    if g.chance(0.3):
        found.append(("send", 1, 0, encoded(1, m.TxSelect())))
    return [*found, ("turn",), ("sync",), ("sync",)]
