"""Which exchanges of the new broker bring a message into one queue and nowhere else. A message that came by one of them may come by
it again, so that programs which publish to the exchange of a delivery, as Celery's `retry` does, find it. moving.py asks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from kvitto.cli.management import Failure, Management

Routes = dict[str, set[tuple[str, str]]]
"""By queue, the pairs of exchange and routing key that lead to this queue and to no other one."""
HARMLESS = {"alternate-exchange"}
"""The arguments of an exchange that change nothing for a routing key that is bound."""
AGAIN_S = 10.0
"""The time after which the bindings are asked for again."""
SHARE = 20.0
"""The next question waits for so many times the time of the last answer, if that is longer: many bindings are work for the broker."""


class Known:
    """The routes of one virtual host, which are asked for again from time to time, because bindings change.

    Without an answer from the broker no route is known at first, and messages lose the names of their exchanges; later ones stay.
    """

    def __init__(self, api: Management, vhost: str) -> None:
        self._api = api
        self._vhost = vhost
        self._routes: Routes = {}
        self._due = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def ask(self) -> None:
        """Ask the broker now."""
        began = time.monotonic()
        with contextlib.suppress(Failure):
            self._routes = await apart(lambda: single_routes(self._api, self._vhost))
        now = time.monotonic()
        self._due = now + max(AGAIN_S, SHARE * (now - began))

    def to(self, queue: str) -> set[tuple[str, str]]:
        """Return the exchanges with routing keys that lead to this queue only. This begins to ask again if that was long ago."""
        if time.monotonic() > self._due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self.ask())
        return self._routes.get(queue, set())


async def apart(ask: Callable[[], Routes]) -> Routes:
    """Call a function in a thread of its own, and return or raise what it does. With `asyncio.to_thread` the command, when it is
    interrupted, would wait for the answer of a broker that may not give any.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Routes] = loop.create_future()

    def settle(give: Callable[[Any], None], what: Any) -> None:
        if not answer.done():
            give(what)

    def work() -> None:
        give: Callable[[Any], None] = answer.set_result
        try:
            what: Any = ask()
        except Exception as error:  # noqa: BLE001 - it is raised where somebody waits
            give, what = answer.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, give, what)

    threading.Thread(target=work, name="kvitto routes", daemon=True).start()
    return await answer


def single_routes(api: Management, vhost: str) -> Routes:
    """Ask a broker for its exchanges and bindings. Raise Failure."""
    exchanges, bindings = api.get("exchanges", vhost), api.get("bindings", vhost)
    delaying = {policy["name"] for policy in api.get("policies", vhost) if "delayed-message" in policy["definition"]}
    of_source: dict[str, list[Any]] = defaultdict(list)
    for binding in bindings:
        of_source[binding["source"]].append(binding)
    found: Routes = defaultdict(set)
    for exchange in exchanges:
        name = exchange["name"]
        if (
            name
            and not exchange.get("internal")
            and HARMLESS.issuperset(exchange.get("arguments") or ())
            and exchange.get("policy") not in delaying
        ):
            for queue, key in _of_exchange(exchange["type"], of_source[name]):
                found[queue].add((name, key))
    return dict(found)


def _of_exchange(type_: str, bindings: list[Any]) -> list[tuple[str, str]]:
    """Return the routing keys that surely lead to exactly one queue, with the queue."""
    ends: dict[str, set[tuple[str, str]]] = defaultdict(set)
    everywhere = set()
    for binding in bindings:
        end = (binding["destination_type"], binding["destination"])
        ends[binding["routing_key"]].add(end)
        everywhere.add(end)
    if type_ == "topic":  # which other patterns match a key is the broker's to say: all must lead to the same queue
        ends = {key: everywhere for key in ends if not {"*", "#"} & set(key.split("."))}
    elif type_ != "direct":
        return []
    return [(name, key) for key, where in ends.items() if len(where) == 1 for kind, name in where if kind == "queue"]
