"""How long `kvitto migrate` waits for brokers that take nothing, and bindings that change while it moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvitto.cli.management import UNREACHABLE, Failure, Management
from kvitto.cli.migrate import moving, routes
from kvitto.cli.migrate.brokers import Broker
from kvitto.cli.migrate.moving import Mover
from kvitto.cli.migrate.plan import Item, Plan
from kvitto.cli.migrate.routes import Known, single_routes
from kvitto.client import Connection
from kvitto.client.aio import Exchange
from kvitto.client.errors import AMQPError
from kvitto.client.uri import parse_uri
from kvitto.shovel.carry import Pace
from kvitto.shovel.load import Dress
from kvitto.torture.nodes import Node
from tests.migrate.trial import api_of, declare
from tests.shovel.test_takeover import Relay, kill

POLL_S = 0.01


def broker(uri: str, api: str = "http://127.0.0.1:1") -> Broker:
    return Broker(uri, parse_uri(uri), None, Management(api))


class Attempts:
    """Stands for `moving.Move`: each attempt lasts some polls, does what `step` says at each, and then loses its connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, polls: int, why: str) -> None:
        self.waits = why
        self.refused = 0
        self.dress = Dress()
        self.item = Item("/", "q", False, 1, 0, 0, 0, True)
        self.begun = 0
        self._polls = polls
        monkeypatch.setattr(moving, "Move", lambda *_: self)
        monkeypatch.setattr(moving, "POLL_S", POLL_S)
        monkeypatch.setattr(moving, "BACKOFF_S", POLL_S / 10)
        monkeypatch.setattr(moving, "PATIENCE_S", 20 * POLL_S)
        monkeypatch.setattr(moving, "why_blocked", lambda target: "")

        async def connect(mover: Mover, vhost: str) -> tuple[Any, Any]:
            mover._routes = {vhost: SimpleNamespace(to=lambda queue: set())}  # type: ignore[dict-item]
            return None, None

        monkeypatch.setattr(Mover, "_connect", connect)

    def step(self) -> None:
        """What an attempt does at each poll."""

    async def run(self, source: Any, target: Any) -> None:
        self.begun += 1
        self.refused = 0
        for _ in range(self._polls):
            await asyncio.sleep(POLL_S)
            self.step()
        raise AMQPError("the connection was lost")

    def give_up(self) -> None:
        plan = Plan(broker("amqp://127.0.0.1:1"), broker("amqp://127.0.0.1:2"), items=[self.item])
        mover = Mover(plan, Pace(), False, lambda item: None, lambda item, wait: None)
        asyncio.run(asyncio.wait_for(mover.run(), 30))


@pytest.mark.parametrize("why", ["", "the target blocks publishers: low on disk"])
def test_attempts_that_move_nothing_are_no_progress(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at each of them was taken for progress, so that the command waited for ever."""
    attempts = Attempts(monkeypatch, 3, why)
    attempts.give_up()
    assert 2 <= attempts.begun <= 20
    assert attempts.item.state == "left" and "no progress for" in attempts.item.problem


def test_another_reason_to_wait_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fickle(Attempts):
        def step(self) -> None:
            self.waits = "low on disk" if self.waits == "low on memory" else "low on memory"

    attempts = Fickle(monkeypatch, 10_000, "low on disk")
    attempts.give_up()
    assert attempts.begun == 1 and "no progress for" in attempts.item.problem


@pytest.mark.parametrize("how", ["moved", "refused"])
def test_messages_that_are_taken_are_progress(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue that takes one of a load from time to time is waited for."""
    enough = 100

    class Slow(Attempts):
        steps = 0

        def step(self) -> None:
            self.steps += 1
            if self.steps >= enough:
                return
            if how == "moved":
                self.item.tally.moved += 1
            else:
                self.refused = enough + 1 - self.steps

    attempts = Slow(monkeypatch, 10_000, "the target refuses messages")
    attempts.give_up()
    assert attempts.steps > enough and "no progress for" in attempts.item.problem


class Answers:
    """Stands for a management API. Each answer has the next list of queues that are bound to one direct exchange; None is a failure."""

    def __init__(self, *bound: list[str] | None) -> None:
        self._bound: Iterator[list[str] | None] = iter(bound)
        self.asked = 0

    def get(self, what: str, vhost: str) -> list[Any]:
        if what == "exchanges":
            return [{"name": "x", "type": "direct", "internal": False, "arguments": {}}]
        if what == "policies":
            return []
        self.asked += 1
        bound = next(self._bound)
        if bound is None:
            raise Failure(UNREACHABLE, "away")
        return [
            {"source": "x", "destination": queue, "destination_type": "queue", "routing_key": "k"} for queue in bound
        ]


def test_routes_are_asked_for_again_and_stay_while_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "AGAIN_S", 0.0)
    monkeypatch.setattr(routes, "SHARE", 0.0)
    answers: Any = Answers(["q"], None, *[["q", "r"]] * 1000)
    alone: set[tuple[str, str]] = {("x", "k")}

    async def story() -> None:
        known = Known(answers, "/")
        await known.ask()
        while answers.asked < 3:
            assert known.to("q") == alone
            await asyncio.sleep(0.001)
        while known.to("q"):
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(story(), 10))


def test_an_exchange_that_leads_to_another_queue_meanwhile_is_no_longer_kept(
    old: Node, new: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later messages would have arrived in the other queue, too."""
    for name, value in (("AGAIN_S", 0.05), ("SHARE", 0.0)):
        monkeypatch.setattr(routes, name, value)
    monkeypatch.setattr(moving, "POLL_S", 0.02)
    for each in (old, new):
        declare(each.uri, ["kept", "also"])
        with Connection(each.uri) as connection:
            channel = connection.channel()
            channel.exchange_declare("keeps", "direct", durable=True)
            channel.queue_bind("kept", "keeps", "k")
    publish_to(old.uri, "keeps", "k", 60)

    def bind(item: Item) -> None:
        if item.tally.moved == 2:
            with Connection(new.uri) as connection:
                connection.channel().queue_bind("also", "keeps", "k")

    items = [Item("/", "kept", False, 60, 0, 0, 0, True)]
    plan = Plan(broker(old.uri, api_of(old)), broker(new.uri, api_of(new)), items=items)
    asyncio.run(Mover(plan, Pace(20.0), False, bind, lambda item, wait: None).run())
    assert (items[0].tally.moved, items[0].problem) == (60, "")
    came_by = exchanges_of(new.uri, "kept")
    assert came_by[0] == "keeps" and came_by[-1] == "kvitto.migrate.kept" and came_by == sorted(came_by)
    assert len(exchanges_of(new.uri, "also")) == came_by.count("keeps") - 2


def publish_to(uri: str, exchange: str, key: str, count: int) -> None:
    with Connection(uri) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for number in range(count):
            channel.publish(b"%d" % number, exchange, key, mandatory=True)
        assert channel.wait_for_confirms(10.0)


def exchanges_of(uri: str, queue: str) -> list[str]:
    """Return the exchanges by which the messages of a queue came, and take them out."""
    found = []
    with Connection(uri) as connection:
        channel = connection.channel()
        while (message := channel.get(queue, no_ack=True)) is not None:
            found.append(message.exchange)
    return found


def test_an_interrupt_does_not_wait_for_the_answer_to_a_question_for_bindings() -> None:
    """`asyncio.run` waited for the thread that asked, and so for a broker that does not answer, for up to three minutes."""
    asked, answered = threading.Event(), threading.Event()

    class Silent(Management):
        def get(self, *path: str, accept: tuple[int, ...] = (), query: str = "") -> Any:
            asked.set()
            answered.wait()
            raise Failure(UNREACHABLE, "no broker answers")

    async def interrupted() -> None:
        asking = asyncio.ensure_future(Known(Silent("http://127.0.0.1:1"), "/").ask())
        while not asked.is_set():
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    try:
        asyncio.run(interrupted())
        assert not answered.is_set()
    finally:
        answered.set()


def test_a_run_waits_until_the_new_broker_has_ended_an_earlier_one(
    old: Node, new: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last requests, to delete the exchange and to forget the writer, may come long after it has died. They would take the exchange
    away from messages that were committed and not moved yet, and the number of the last batch from its successor.
    """
    for each in (old, new):
        declare(each.uri, ["late"])
    publish_to(old.uri, "", "late", 50)
    waits: list[str] = []
    waited = asyncio.Event()

    def note(item: Item, wait: moving.Wait) -> None:
        waits.append(wait.why)
        waited.set()

    async def story() -> None:
        address = parse_uri(new.uri)
        async with Relay(address.port)() as relay:

            class LateExchange(Exchange):
                async def delete(self, *, if_unused: bool = False) -> None:
                    relay.hold()
                    await super().delete(if_unused=if_unused)

            slow = new.uri.replace(f":{address.port}", f":{relay.port}")
            dying = Mover(plan_of(old, slow, new), Pace(), False, lambda item: None, lambda item, wait: None)
            with monkeypatch.context() as patch:
                patch.setattr("kvitto.client.aio.channel.Exchange", LateExchange)
                ends = asyncio.create_task(dying.run())
                await relay.holds.wait()
            kill(*dying._connections["/"])
            ends.cancel()
            await asyncio.wait([ends])
            await asyncio.to_thread(publish_to, old.uri, "", "late", 50)
            plan = plan_of(old, new.uri, new)
            successor = asyncio.create_task(Mover(plan, Pace(), False, lambda item: None, note).run())
            await asyncio.wait([successor, asyncio.create_task(waited.wait())], return_when=asyncio.FIRST_COMPLETED)
            assert not successor.done() and plan.items[0].tally.moved == 0
            relay.release()
            await successor
            assert (plan.items[0].tally.moved, plan.items[0].problem) == (50, "")

    asyncio.run(story())
    assert set(waits) == {moving.BUSY}
    assert len(exchanges_of(new.uri, "late")) == 100


def plan_of(old: Node, uri: str, new: Node) -> Plan:
    """The queue `late`, to the broker `new` at this address."""
    items = [Item("/", "late", False, 50, 0, 0, 0, True)]
    return Plan(broker(old.uri, api_of(old)), broker(uri, api_of(new)), items=items)


def test_a_queue_that_has_been_moved_leaves_no_channel_open(
    old: Node, new: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection has 2,047 channels at most, and may move more queues than that."""
    names = ["one", "two", "three"]
    for each in (old, new):
        declare(each.uri, names)
    for name in names:
        publish_to(old.uri, "", name, 5)
    left: list[int] = []

    async def end(connection: Any) -> None:
        left.append(len(connection._channels))
        await connection.close()

    monkeypatch.setattr(moving, "end", end)
    items = [Item("/", name, False, 5, 0, 0, 0, True) for name in names]
    plan = Plan(broker(old.uri, api_of(old)), broker(new.uri, api_of(new)), items=items)
    asyncio.run(Mover(plan, Pace(), False, lambda item: None, lambda item, wait: None).run())
    assert [item.tally.moved for item in items] == [5, 5, 5]
    assert left == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "kept"), [({}, True), ({"alternate-exchange": "other"}, True), ({"x-delayed-type": "direct"}, False)]
)
def test_an_alternate_exchange_changes_nothing_for_a_key_that_is_bound(arguments: dict[str, str], kept: bool) -> None:
    class Api(Answers):
        def get(self, what: str, vhost: str) -> list[Any]:
            found = super().get(what, vhost)
            return [{**found[0], "arguments": arguments}] if what == "exchanges" else found

    api: Any = Api(["q"])
    assert single_routes(api, "/") == ({"q": {("x", "k")}} if kept else {})
