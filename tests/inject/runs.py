"""One exception in one client's day (tests/sim): the process lives, others are served, the next start has all that was confirmed."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import pytest

from kvitto.base.errors import PromiseError, StoreError
from kvitto.protocol.connection import Connection
from kvitto.store.commit import Commit
from kvitto.store.store import Store
from tests.inject.sites import SITES, Injected
from tests.protocol.answers import check_service
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.sim.world import SeededIds, SimulatedRun, check_state, small_world

ENDS_THE_PROCESS = {
    "store/journal.py", "store/record.py", "store/definitions.py", "store/line.py", "store/store.py", "store/commit.py",
}  # fmt: skip
"""Files whose failure makes promises doubtful: an exception that was raised in them, or below them, may end the process."""
PARTS = {"<listcomp>", "<dictcomp>", "<genexpr>"}
OF_THE_HUB = {"turn", "_serve_crowds", "flush", "unfinished", "after_sync"}
OF_THE_CONFIRMS = {
    "note_published", "answer", "_written", "_is_late", "_targets", "_answer_written", "_look_late", "synced",
}  # fmt: skip
OF_LATER_WRITES = {"end", "reached", "may_go_on", "_line_with_room", "next", "_has_room", "_ask", "_put_off"}
OF_THE_BROKER = {"tick", "sync_all"}
OF_ITS_TURN = {
    "turn", "_write_later", "_write_dirty", "_pump_late", "_note_applied", "targets", "reached", "unfinished", "flush", "write_marks",
    "_slice",
}  # fmt: skip
SKELETON = (
    {("protocol/hub.py", name) for name in OF_THE_HUB | PARTS}
    | {("protocol/driver.py", "schedule"), ("broker/state.py", "read_clock"), ("broker/state.py", "changes")}
    | {("protocol/confirms.py", name) for name in OF_THE_CONFIRMS | PARTS}
    | {("broker/queues/later_writes.py", name) for name in OF_LATER_WRITES}
    | {("broker/broker.py", name) for name in OF_THE_BROKER | PARTS}
    | {("broker/turning.py", name) for name in OF_ITS_TURN | PARTS}
    | {("broker/transfers/records.py", "apply")}
)
"""Functions in which everybody's work meets; an exception of their own lines is nobody's, and confirms depend on them."""
STEPS = 40


class DayOver(BaseException):
    """The turn in which the exception was raised is over; no wall may hold this back."""


@dataclass
class Report:
    """What became of the exceptions."""

    sites: int = 0
    reached: int = 0
    raised: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.sites} call sites, {self.reached} reached, {self.raised} exceptions raised"]
        lines += [f"  {name}: {count}" for name, count in self.outcomes.most_common()]
        return "\n".join([*lines, *self.findings[:100], f"{len(self.findings)} findings"])


def run_all(seed: int, days: int, hits: int, most: int, site: str, tell: Callable[[str], None]) -> Report:
    """Raise at every site that is reached, `hits` times on each of the days."""
    logging.getLogger("kvitto").setLevel(logging.CRITICAL)
    report = Report()
    plans: list[tuple[int, int, int]] = []
    seen: set[int] = set()
    for day in range(seed, seed + days):
        counts = count(day)
        fresh = {n: c for n, c in counts.items() if site in str(SITES.all[n])}
        for number, reached in sorted(fresh.items()):
            # a site that an earlier day has reached is looked at once more, at another time
            times = (
                {1, reached, 1 + Random(f"{day} {number}").randrange(reached)}
                if number not in seen
                else {reached // 2 + 1}
            )
            plans += [(day, number, hit) for hit in sorted(times)[:hits]]
        seen |= set(fresh)
    report.sites, report.reached = len(SITES.all), len(seen)
    if most and most < len(plans):
        plans = Random(seed).sample(plans, most)
    for day, number, hit in plans:
        outcome, wrong = run(day, number, hit)
        report.raised += outcome != "not reached"
        report.outcomes[outcome or "the day ends in the middle of a sync"] += 1
        tell(f"{outcome}: {SITES.all[number]} (day {day}, hit {hit})")
        if wrong:
            report.findings.append(f"{SITES.all[number]} (day {day}, hit {hit}): {wrong}")
    return report


def count(day: int) -> Counter[int]:
    """How often each site is reached on a day without exceptions, from the first step on."""
    with small_world(day):
        world = SimulatedRun(day)
        world.start()
        SITES.hits, SITES.counting = Counter(), True
        world.play(STEPS, ends=0)
        SITES.counting = False
    return SITES.hits


@contextmanager
def stopping() -> Iterator[None]:
    """End the day when the turn is over in which the exception was raised."""
    turn, begin_sync = ProtocolHarness.turn, Store.begin_sync
    turned = False

    def stopping_turn(self: ProtocolHarness) -> None:
        nonlocal turned
        stop_if_over()
        turn(self)
        turned = SITES.fired

    def stopping_begin(self: Store, everything: bool, most: int = 0) -> Commit:
        stop_if_over()
        return begin_sync(self, everything, most)

    def stop_if_over() -> None:
        if turned:
            raise DayOver

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProtocolHarness, "turn", stopping_turn)
        patch.setattr(Store, "begin_sync", stopping_begin)
        yield


def run(day: int, number: int, hit: int) -> tuple[str, str]:
    """(what became of it, what is wrong with that)."""
    with small_world(day):
        world = SimulatedRun(day)
        world.start()
        bystander = Bystander(world.harness)
        SITES.arm(number, hit)
        ended = play(world)
        fired = SITES.fired
        SITES.disarm()
        if not fired:
            return "not reached", ""
        outcome = ""
        try:
            if ended is None and not in_a_sync(world.harness.store):
                outcome = what_happened(world)
                if outcome != "nothing that anybody notices":
                    bystander.check()
                    check_service(world.harness)
            elif ended is not None:
                outcome = "the process ends"
                check_may_end(ended)
            found = world.disk.copy().kill()
            for name in ("bystander", "probe"):
                told = world.ledger.queue(name)
                told.exists, told.sent, told.settled = None, [b"x"], {b"x"}
            for told in world.ledger.queues.values():
                told.refused.clear()  # a nack because of a queue that is out of service: the others have the message
            with SeededIds.others(Random(f"{day} {number} {hit}")):
                check_state(found, world.clock, world.ledger)
        except Exception as error:  # noqa: BLE001 - a finding
            return "finding", f"{outcome}: {type(error).__name__}: {error} ({shown(error)})"
    return outcome, ""


def in_a_sync(store: Store) -> bool:
    """Whether the day has ended in the middle of a sync: by itself, or because a client was told there what it does not expect."""
    return store.commits.busy or isinstance(store.failed, AssertionError)


def play(world: SimulatedRun) -> Exception | None:
    """What reached the top, and would end the process; None if nothing did."""
    try:
        with stopping():
            world.play(STEPS, ends=0)
    except DayOver:
        pass
    except (Injected, StoreError) as error:
        told = in_request(error) and world.harness.store.failed is None
        return None if told or in_client(error) else error
    except Exception:  # the client is told what it does not expect: it is not the broker's mistake
        if not SITES.fired:
            raise
    try:
        note_unread(world)
        world.actor.read()
        world.harness.turn()
        world.actor.read()
    except (Injected, StoreError) as error:
        return error
    except Exception:  # noqa: BLE001
        pass
    return None


def note_unread(world: SimulatedRun) -> None:
    """What the client has been sent and has not read may have been settled with that (A2): it stops at what it does not expect."""
    unread = b"".join(bytes(wire.written[wire.read :]) for wire in world.actor.wires)
    for told in world.ledger.queues.values():
        told.doomed |= {body for body in told.sent if body in unread}


def what_happened(world: SimulatedRun) -> str:
    """Whom the broker has ended."""
    harness = world.harness
    if any(queue.fault for queue in harness.broker.queues.values()):
        return "a queue is out of service"
    if any(wire.connection not in harness.hub.connections or wire.connection.state > 4 for wire in world.actor.wires):
        return "a connection is closed"
    if harness.store.alarms:
        return "a service has stopped"
    return "a channel is closed, or nobody notices"


def check_may_end(error: Exception) -> None:
    """Whether promises were doubtful: the journal, the definitions or a sync have failed, or what all turns have in common."""
    if isinstance(error, PromiseError):
        return
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "src/kvitto/" in f.filename]
    through = [(frame.filename.partition("src/kvitto/")[2], frame.name) for frame in frames]
    allowed = {path for path, _ in through} & ENDS_THE_PROCESS or all(function in SKELETON for function in through)
    assert allowed, f"ends the process, through {shown(error)}"


def in_client(error: Exception) -> bool:
    """Whether the client of the test has raised it, which uses the broker's codec."""
    paths = [f.filename.partition("src/kvitto/")[2] for f in traceback.extract_tb(error.__traceback__)]
    return all(path.startswith("wire/") or path.endswith("log.py") for path in paths if path)


def in_request(error: Exception) -> bool:
    """Whether a request of an operator to the management API has failed, which answers 500 then (tests/sim calls what the API calls)."""
    paths = [f.filename for f in traceback.extract_tb(error.__traceback__)]
    return isinstance(error, Injected) and any(path.endswith(("sim/ruling.py", "sim/imports.py")) for path in paths)


def shown(error: Exception) -> str:
    """The way of an exception through the broker, in a line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "src/kvitto" in f.filename]
    return " > ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in frames[-6:])


class Bystander:
    """A connection with a queue of its own, which has nothing to do with what fails."""

    def __init__(self, harness: ProtocolHarness) -> None:
        from kvitto.wire import methods as m

        self.harness = harness
        self.wire = Wire(harness)
        self.wire.login()
        self.wire.put(1, m.QueueDeclare("bystander", durable=True), m.ConfirmSelect(), m.BasicConsume("bystander", "c"))
        harness.settle_down()
        self.wire.frames()

    def check(self) -> None:
        """It publishes, is confirmed, and gets what it has published."""
        from kvitto.wire import methods as m
        from tests.protocol import sessions

        self.wire.feed(sessions.content(1, m.BasicPublish("", "bystander"), b"\0\0", b"x"))
        self.harness.settle_down()
        kinds = {type(method) for method in self.wire.methods()}
        assert kinds == {m.BasicAck, m.BasicDeliver}, f"the bystander is not served: {kinds}"
        assert isinstance(self.wire.connection, Connection)
