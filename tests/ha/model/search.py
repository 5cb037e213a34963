"""Looks at all states of a setting, the nearest ones first, and tells the shortest way to one that breaks a promise."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.ha.model.rules import Setting
from tests.ha.model.space import Key, Space


@dataclass
class Finding:
    """What a search has come to."""

    setting: Setting
    states: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    """All states were looked at."""
    wrong: str = ""
    """The promise that was broken."""
    trace: list[str] = field(default_factory=list)
    """The steps that lead there."""

    def told(self) -> str:
        """For people: the steps, one a line, and what they break."""
        if not self.wrong:
            return f"nothing found in {self.states} states"
        lines = [f"{number:3}. {words}" for number, words in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"Then {self.wrong}."])


def search(setting: Setting, states_max: int = 0) -> Finding:
    """Breadth first, until something is wrong, there is nothing more to see, or `states_max` states have been seen."""
    started = time.process_time()
    space, found = Space(setting), Finding(setting)
    first = space.canonical(space.first())
    before: dict[Key, Key | None] = {first: None}
    level = [first]
    while level and not found.wrong:
        level = next_level(space, level, before, found)
        found.depth += bool(level)
        if states_max and len(before) > states_max:
            break
    found.complete = not level and not found.wrong
    found.states = len(before)
    found.seconds = time.process_time() - started
    return found


def next_level(space: Space, level: list[Key], before: dict[Key, Key | None], found: Finding) -> list[Key]:
    """All new states one step away."""
    after: list[Key] = []
    canonical = space.canonical
    for key in level:
        for _, raw, _, wrong in space.next(key):
            if raw in before and not wrong:
                continue
            new = canonical(raw)
            if new in before and not wrong:
                continue
            before.setdefault(new, key)
            after.append(new)
            if wrong := wrong or space.wrong(new):
                tell(space, before, key, found)
                return []
    return after


def tell(space: Space, before: dict[Key, Key | None], last: Key, found: Finding) -> None:
    """Go the way once more with the names that nodes have at its beginning."""
    way: list[Key] = []
    at: Key | None = last
    while at is not None:
        way.append(at)
        at = before[at]
    way.reverse()
    key = space.first()
    for wanted in way[1:]:
        step, key = next((step, raw) for step, raw, *_ in space.next(key) if space.canonical(raw) == wanted)
        found.trace.append(step)
    for step, raw, _, broken in space.next(key):
        if told := broken or space.wrong(raw):
            found.trace.append(step)
            found.wrong = told
            return
    raise AssertionError("with other names the same steps break nothing")
