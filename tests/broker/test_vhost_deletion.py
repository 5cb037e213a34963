"""The deletion of a virtual host, which takes many turns: whatever ends the broker meanwhile, the next start does the rest."""

from __future__ import annotations

from itertools import count, takewhile
from random import Random
from typing import Any

import pytest

from kvitto.base.errors import StoreFull
from kvitto.broker.administration import removal
from kvitto.broker.administration.auth import TOPIC_PERMISSION
from kvitto.broker.administration.operations import Operations
from kvitto.broker.administration.parameters import PARAMETER
from kvitto.broker.administration.policies import policy
from kvitto.broker.broker import ORDER
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.vhost import OPERATOR_POLICY, POLICY
from kvitto.broker.vhost_settings import VHostSettings
from kvitto.store import judge
from kvitto.store.definitions import Tracked
from kvitto.store.line import lines
from kvitto.store.repair.salvage import Salvage
from kvitto.store.repair.survey import Survey
from kvitto.wire.properties import Properties
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness, Taker, address
from tests.support.simdisk import PowerCut, SimDisk

SETTINGS = VHostSettings("orders of Lund", ("red",))
QUEUES: dict[str, dict[str, Any]] = {
    **{f"q{i}": {} for i in range(12)},
    "stream": {"x-queue-type": "stream"},
    "kept": {"x-archive": True},
}
KINDS = {*judge.IN_VHOSTS} - {"fault"}
"""What `furnish` defines."""


def furnish(harness: BrokerHarness) -> None:
    """Make a virtual host "going" with something of each kind, and a queue elsewhere."""
    broker = harness.broker
    harness.declare("elsewhere")
    harness.publish("elsewhere", b"stays")
    vhost = broker.add_vhost("going", SETTINGS)
    broker.users.set_permission("guest", "going", ".*", ".*", ".*")
    broker.users.set_topic_permission("guest", "going", "amq.topic", ".*", ".*")
    broker.parameters.set("going", "vhost-limits", "limits", {"max-queues": 99})
    vhost.set_policy(POLICY, policy("few", {"pattern": "^q", "definition": {"max-length": 100}}))
    vhost.set_policy(OPERATOR_POLICY, policy("fewer", {"pattern": "^q", "definition": {"max-length": 90}}, True))
    vhost.declare_exchange("later", "x-delayed-message", True, False, False, {"x-delayed-type": "fanout"})
    for name, arguments in QUEUES.items():
        queue = vhost.declare_queue(name, True, False, False, arguments, None)
        vhost.bind("later", queue, name, {})
        for n in range(3):
            queue.append_bytes(address(name), b"\0\0", b"%s %d" % (name.encode(), n), -1, 0)
    broker.read_clock()
    message = Operations(vhost, None).publish("later", "", Properties(headers={"x-delay": 60_000}), b"waits")
    for _ in message.steps():
        pass
    stage = broker.stages.open(vhost, "writer", 2, "task")
    stage.queue.append_bytes(address("q1"), b"\0\0", b"staged", -1, 0)
    broker.define("writer", ("going", "writer"), {"batch": 1, "moving": []})
    harness.settle_down()
    kept = vhost.queues["kept"]
    assert isinstance(kept, WorkQueue)
    while kept.get(Taker(kept, no_ack=True)):
        pass
    harness.settle_down()
    assert {kind for kind, key, _ in defined(harness) if kind in judge.IN_VHOSTS and key[0] == "going"} == KINDS


def defined(harness: BrokerHarness) -> list[tuple[str, tuple[str, ...], Any]]:
    return harness.store.definitions._list()


def left(harness: BrokerHarness) -> list[tuple[str, tuple[str, ...]]]:
    """What is defined in the virtual host."""
    return [(kind, key) for kind, key, _ in defined(harness) if kind in judge.IN_VHOSTS and key[0] == "going"]


def begun(disk: SimDisk) -> bool:
    """Whether the definitions say that the virtual host is being deleted. They say nothing from the first line on that is torn."""
    data = disk.seen().open("definitions.log").read_at(0, 1 << 20)
    changes = takewhile(lambda change: change is not None, (change for _, _, change in lines(data, "")))
    return any(
        change is not None and change["kind"] == "vhost" and "deleting" in (change.get("value") or {})
        for change in changes
    )


def check(harness: BrokerHarness, whole: set[Any]) -> bool:
    """Check that the virtual host is there with all that it had, or gone with all. Return whether it is gone."""
    assert harness.bodies("elsewhere") == [b"stays"]
    assert not harness.store.alarms
    remains = left(harness)
    if remains:
        assert {*remains} == whole and harness.broker.vhosts["going"].settings == SETTINGS
        assert {*harness.broker.vhosts["going"].queues} == {*QUEUES}
        return False
    assert [*harness.broker.vhosts] == ["/"]
    harness.settle_down()
    assert [*harness.broker.queues] == harness.disk.listdir("queues")
    return True


class Deleting:
    """A broker that deletes its virtual host, up to an operation of the disk."""

    def __init__(self, cut_at: int | None = None) -> None:
        self.harness = BrokerHarness(SimDisk(), ManualClock())
        furnish(self.harness)
        self.whole = {*left(self.harness)}
        disk = self.disk = self.harness.disk
        before = disk.operations
        disk.cut_at = None if cut_at is None else before + cut_at
        try:
            broker = self.harness.broker
            broker.jobs.start(removal.delete_vhost(broker, broker.vhosts["going"]))
            self.harness.turn()
            self.harness.settle_down()
        except PowerCut:
            assert cut_at is not None
        else:
            assert cut_at is None
            self.operations = disk.operations - before
            assert check(self.harness, self.whole)


def ends(disk: SimDisk, seed: int) -> list[SimDisk]:
    """What a killed process leaves, and what power cuts may leave."""
    cuts = [disk.survivor(Random(f"{seed} {hostile}"), hostile=hostile) for hostile in (False, True)]
    return [disk.copy().kill(), *cuts]


def start(disk: SimDisk) -> BrokerHarness:
    return BrokerHarness(disk, ManualClock())


def test_a_broker_that_ends_during_the_deletion_of_a_vhost_goes_on_with_it() -> None:
    """D2: of 400 queues, 319 were left, and the virtual host could be opened: at each operation, also of the next start."""
    operations = Deleting().operations
    gone = 0
    for cut_at in range(1, operations + 1):
        deleting = Deleting(cut_at)
        for found in ends(deleting.disk, cut_at):
            must_go = begun(found)
            assert Survey(found.copy()).findings == []
            again = found.copy()
            harness = start(found)
            assert check(harness, deleting.whole) or not must_go
            gone += must_go
            harness.kill()
            assert check(harness, deleting.whole) or not must_go
            if must_go and cut_at % 7 == 0:
                cut_short(again, deleting.whole, Random(cut_at))
    assert gone > operations


def cut_short(disk: SimDisk, whole: set[Any], rng: Random) -> None:
    """The start that goes on with the deletion ends in its middle, too."""
    trial = disk.copy()
    start(trial)
    disk.cut_at = rng.randint(1, trial.operations)
    with pytest.raises(PowerCut):
        start(disk)
    for found in ends(disk, rng.randrange(1 << 20)):
        assert Survey(found.copy()).findings == []
        assert check(start(found), whole)


def half_deleted() -> BrokerHarness:
    harness = BrokerHarness()
    furnish(harness)
    vhost = harness.broker.vhosts["going"]
    steps = removal.delete_vhost(harness.broker, vhost)
    for _ in zip(steps, range(1), strict=False):
        pass
    assert 0 < len(vhost.queues) < len(QUEUES)
    return harness


def stop(harness: BrokerHarness) -> None:
    harness.broker.finish()
    harness.store.shut()


def test_a_broker_that_is_stopped_meanwhile_goes_on_with_it_too() -> None:
    harness = half_deleted()
    stop(harness)
    harness.disk = harness.disk.kill()
    assert Survey(harness.disk.copy()).findings == []
    harness.start()
    assert check(harness, set())


def test_a_new_vhost_of_that_name_is_empty_and_stays() -> None:
    harness = half_deleted()
    harness.kill()
    vhost = harness.broker.add_vhost("going")
    assert vhost.settings == VHostSettings() and not vhost.queues and not vhost.bindings and not vhost.policies
    vhost.declare_queue("q1", True, False, False, {}, None)
    harness.settle_down()
    for _ in range(2):
        harness.kill()
        assert [*harness.broker.vhosts["going"].queues] == ["q1"]
        assert harness.broker.vhosts["going"].queues["q1"].messages == 0


def test_what_changes_the_vhost_meanwhile_does_not_take_the_mark_away() -> None:
    """Its settings are in the same line."""
    harness = half_deleted()
    harness.broker.add_vhost("going", VHostSettings("other"))
    harness.kill()
    assert check(harness, set())


def test_a_compaction_keeps_the_mark() -> None:
    harness = half_deleted()
    harness.store.compact_definitions()
    assert begun(harness.disk)
    harness.kill()
    assert check(harness, set())


def test_the_archive_of_its_queues_stays() -> None:
    """As after the deletion of a queue: an archive has bounds of its own."""
    harness = half_deleted()
    queue_id = harness.broker.vhosts["going"].queues["kept"].log.queue_id
    harness.kill()
    assert check(harness, set())
    assert [name for name in harness.disk.listdir(f"archive/{queue_id}") if name.endswith(".log")]


def test_a_start_without_room_for_the_definitions_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = half_deleted()

    def refuse(file: Tracked, data: bytes) -> None:
        raise StoreFull(f"cannot write to {file.path}: the simulated disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Tracked, "append", refuse)
        harness.kill()
        assert [*harness.broker.vhosts] == ["/"] and harness.broker.full
        harness.broker.add_vhost("going").declare_queue("q1", True, False, False, {}, None)
    harness.broker.retry_writes()
    harness.settle_down()
    harness.kill()
    assert [*harness.broker.vhosts["going"].queues] == ["q1"] and not harness.broker.full


def test_check_says_so_and_salvage_leaves_it_out() -> None:
    harness = half_deleted()
    found = Survey(harness.disk.seen())
    assert not found.findings and any("vhost 'going' was being deleted" in note for note in found.notes)
    target = SimDisk()
    Salvage(found, target, harness.clock).run()
    salvaged = BrokerHarness(target)
    assert [*salvaged.broker.vhosts] == ["/"] and salvaged.bodies("elsewhere") == [b"stays"]


def test_with_a_damaged_line_salvage_keeps_it() -> None:
    """The line that cannot be read may have made a new virtual host of that name."""
    harness = half_deleted()
    stop(harness)
    disk = harness.disk.seen()
    file = disk.open("definitions.log")
    data = file.read_at(0, file.size())
    at = data.index(b'"deleting": true')
    damaged = data.index(b"\n", at) + 3
    file.write_at(damaged, [bytes([data[damaged] ^ 1])])
    target = SimDisk()
    Salvage(Survey(disk), target, harness.clock).run()
    assert "going" in BrokerHarness(target).broker.vhosts


def test_the_kinds_of_definitions_are_in_a_vhost_or_not() -> None:
    """A start deletes those that are in it; one that is missing there would be left behind."""
    assert {*ORDER} - {*judge.IN_VHOSTS} == {"initialised", "cluster_name", "user", "global_parameter"}
    assert {*judge.IN_VHOSTS} <= {*ORDER} and {TOPIC_PERMISSION, PARAMETER} <= {*judge.IN_VHOSTS}


@pytest.mark.parametrize("seed", range(5))
def test_power_cuts_at_any_time_among_other_changes(seed: int) -> None:
    """Several virtual hosts come and go, with the same names; one that was deleted never comes back in part."""
    rng, harness = Random(seed), BrokerHarness()
    numbers = count()
    for _ in range(60):
        broker = harness.broker
        vhost = broker.vhosts.get("going")
        if vhost is None:
            vhost = broker.add_vhost("going")
            edition = next(numbers)
            for i in range(rng.randint(5, 20)):
                vhost.declare_queue(f"{edition}.{i}", True, False, False, {}, None)
            harness.settle_down()
        elif not vhost.deleting:
            broker.jobs.start(removal.delete_vhost(broker, vhost))
        names = {*vhost.queues}
        for _ in range(rng.randint(0, 3)):
            rng.choice((harness.turn, harness.sync))()
        begins = vhost.deleting
        if rng.random() < 0.5:
            if rng.random() < 0.5:
                harness.kill()
                assert not begins or "going" not in harness.broker.vhosts
            else:
                harness.cut(rng, hostile=rng.random() < 0.5)
            found = harness.broker.vhosts.get("going")
            assert found is None or begins or {*found.queues} == names
            assert found is None or len({name.partition(".")[0] for name in found.queues}) == 1
