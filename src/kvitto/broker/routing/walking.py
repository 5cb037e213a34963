"""Finds the queues of a message, from exchange to exchange. It works in pieces: there may be thousands of exchanges and keys.

`walk` is a job (broker/jobs.py) that returns what it has found. Callers that cannot wait run it with `at_once`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import islice

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.exchange import Exchange
from kvitto.broker.routing.index import PIECE_STEPS, Dest
from kvitto.broker.routing.recent_history import WithHistory
from kvitto.wire.properties import Properties

KEY_STEPS = 12
"""The cost of asking one exchange for one key, without the steps in its index."""

NOTHING_SAID = Properties()
"""Stands for a message's properties where only the exchange and the routing key are known. It must not be changed."""

SEARCH_COST = 10
"""The cost of a search for a route, without its steps, in units of about a microsecond."""

Lookup = Callable[[str], Exchange | None]
Walk = Generator[bool, None, "Found"]


@dataclass(frozen=True, slots=True)
class Found:
    """`queues` holds each queue once. `dynamic`: they depend on the message's properties and cannot be cached. `cost`: the steps taken.

    `histories`: hidden queues of exchanges on the way, which get the message, too, and do not count. `steps`: the most that the search
    could have taken. `exchanges`: those that the message has come by.
    """

    queues: list[Dest]
    histories: list[Dest]
    dynamic: bool
    cost: int
    steps: int
    exchanges: set[Exchange]


def walk(
    exchange: Exchange,
    keys: Sequence[str],
    properties: Properties,
    lookup: Lookup,
    steps_max: int | None,
    leaving: Exchange | None = None,
    through: bool = False,
) -> Walk:
    """Find the queues that a message reaches.

    If no key matches at an exchange, its alternate exchange is asked, if that exists. This holds for exchanges on the way, too. Each
    exchange is asked once, so cycles end. Raises ChannelError 406 if the search could take more than `steps_max` steps; None stands
    for no limit.

    An exchange that deduplicates takes a message into its passage, if a queue behind it would get the message now (broker/queues/
    passage.py). `leaving`: the exchange whose hidden queue the message leaves. It takes no message a second time, and neither does one
    from which the message would come back to it: otherwise messages could run in circles. `through`: no exchange takes it.
    """
    steps, cost, left = 0, 0, PIECE_STEPS
    seen, waiting = {exchange}, [exchange]
    queues: dict[Dest, None] = {}
    histories: list[Dest] = []
    dynamic = False
    while waiting:
        current = waiting.pop()
        if current.passage is not None and current is not leaving and not through:
            rest_max = None if steps_max is None else max(steps_max - steps, 0)
            behind = yield from walk(current, keys, properties, lookup, rest_max, through=True)
            steps, cost = steps + behind.steps, cost + behind.cost
            dynamic = dynamic or behind.dynamic
            if leaving not in behind.exchanges:
                if behind.queues or behind.histories:
                    queues[current.passage] = None
                continue
        index = current.index
        dynamic = dynamic or index.needs_properties
        asked = keys[:1] if index.first_key_only else keys
        steps += (1 + index.steps) * len(asked)
        if steps_max is not None and steps > steps_max:
            text = f"routing from exchange '{exchange.name}' could take more than {steps_max} steps for this message"
            raise ChannelError(PRECONDITION_FAILED, text, limit="routing")
        found: Collection[Dest] = ()
        several: dict[Dest, None] = {}
        slow = index.steps > PIECE_STEPS
        for key in asked:
            found = (yield from index.search(key, properties)) if slow else index.route(key, properties)
            if isinstance(found, WithHistory):
                histories.append(found.history)
            taken = KEY_STEPS + index.cost + len(found)
            cost += taken
            left -= taken
            if len(asked) > 1:
                several.update(dict.fromkeys(found))
            if left <= 0:
                found, left = tuple(found), PIECE_STEPS  # a copy, since bindings may change during the pause
                yield True
        if several:
            found = several
        if not found and current.alternate is not None:
            alternate = lookup(current.alternate)
            found = () if alternate is None else (alternate,)
        if len(found) > PIECE_STEPS:
            found = tuple(found)
        rest = iter(found)
        while part := tuple(islice(rest, PIECE_STEPS)):
            for dest in part:
                if not isinstance(dest, Exchange):
                    queues[dest] = None
                elif dest not in seen:
                    seen.add(dest)
                    waiting.append(dest)
            if len(part) == PIECE_STEPS:
                yield True
    in_use = [q for q in queues if not q.deleted or q.fault is not None]
    return Found(in_use, [q for q in histories if not q.deleted], dynamic, cost, steps, seen)
