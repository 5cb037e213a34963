"""Walks through worlds that are too large to be seen whole: one random step after the other, from a seed."""

from __future__ import annotations

from random import Random

from tests.ha.model.rules import Setting
from tests.ha.model.search import Finding
from tests.ha.model.space import Key, Next, Space
from tests.ha.model.state import Kind

RARE = {Kind.FAILS: 0.15, Kind.ELECTS: 0.1, Kind.CHANGES: 0.5}
"""How often such a step is taken when it has been drawn: a node that always fails comes to nothing."""
LENGTH = 120
"""Steps of a walk."""


def walks(setting: Setting, seed: int, steps: int) -> Finding:
    """Walks with about so many steps in all; ends with the first that breaks a promise."""
    rng, space, found = Random(seed), Space(setting), Finding(setting)
    while found.states < steps and not found.wrong:
        key, trace = space.first(), list[str]()
        for _ in range(LENGTH):
            possible = list(space.next(key))
            if not possible:  # all directories are lost
                break
            words, key, wrong = drawn(rng, possible)
            trace.append(words)
            found.states += 1
            found.wrong = wrong or space.wrong(key)
            if found.wrong:
                break
        found.depth = max(found.depth, len(trace))
        found.trace = trace
    return found


def drawn(rng: Random, possible: list[Next]) -> tuple[str, Key, str]:
    while True:
        words, key, kind, wrong = rng.choice(possible)
        if len(possible) == 1 or rng.random() < RARE.get(kind, 1.0):
            return words, key, wrong
