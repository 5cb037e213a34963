"""What a start makes of the definitions: the same as before it, whatever was defined, and wherever the first one ended."""

from __future__ import annotations

import contextlib
import copy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.errors import ChannelError
from kvitto.broker.queues.queue import Queue
from kvitto.store.definitions import Definitions
from kvitto.store.record import Append, Record
from tests.support.harness import BrokerHarness, address
from tests.support.simdisk import PowerCut, SimDisk

VHOSTS = st.sampled_from(["/", "v"])
NAMES = st.sampled_from(["a", "b"])
SOURCES = st.sampled_from(["a", "b", "amq.topic", "amq.fanout"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["add_vhost", "delete_vhost"]), VHOSTS),
    st.tuples(st.sampled_from(["exchange", "queue"]), VHOSTS, NAMES, st.booleans(), st.booleans()),
    st.tuples(st.sampled_from(["delete_exchange", "delete_queue"]), VHOSTS, NAMES),
    st.tuples(st.sampled_from(["bind", "unbind"]), VHOSTS, SOURCES, SOURCES, st.booleans(), st.sampled_from(["", "k"])),
)


def take(harness: BrokerHarness, step: tuple[Any, ...]) -> None:
    """One change, if it can be made."""
    broker, (what, name, *rest) = harness.broker, step
    if what == "add_vhost":
        broker.add_vhost(name)
        return
    if name not in broker.vhosts:
        return
    vhost = broker.vhosts[name]
    match what, *rest:
        case ["delete_vhost"]:
            broker.delete_vhost(name)
        case ["exchange", name, durable, auto_delete]:
            vhost.declare_exchange(name, "topic", durable, auto_delete, False, {})
        case ["queue", name, durable, auto_delete]:
            vhost.declare_queue(name, durable, False, auto_delete, {}, None)
        case ["delete_exchange", name]:
            vhost.delete_exchange(name)
        case ["delete_queue", name]:
            vhost.delete_queue(vhost.queue(name))
        case ["bind" | "unbind", source, dest, to_queue, key]:
            target = vhost.queue(dest) if to_queue else vhost.exchange(dest)
            getattr(vhost, what)(source, target, key, {"k": 1} if key else {})


def picture(harness: BrokerHarness) -> dict[str, Any]:
    """All that is durable."""
    return {
        vhost.name: (
            sorted(e.name for e in vhost.exchanges.values() if e.durable),
            sorted(q.name for q in vhost.queues.values() if q.durable),
            sorted(
                (e.name, b.dest.name, isinstance(b.dest, Queue), b.routing_key, str(b.arguments))
                for e in vhost.exchanges.values()
                for b in e.bindings()
                if e.durable and b.dest.durable
            ),
        )
        for vhost in harness.broker.vhosts.values()
    }


@given(st.lists(STEPS, max_size=25))
def test_what_is_durable_is_the_same_after_a_start(steps: list[tuple[Any, ...]]) -> None:
    """D2: in any order of changes, also where what is deleted was bound to what stays."""
    harness = BrokerHarness()
    for step in steps:
        with contextlib.suppress(ChannelError):
            take(harness, step)
    harness.settle_down()
    before, defined = picture(harness), len(harness.store.definitions._list())
    harness.kill()
    assert picture(harness) == before
    harness.kill()
    assert len(harness.store.definitions._list()) == defined


def test_a_start_that_brings_nothing_new_leaves_the_definitions_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an election clients wait for a start: it makes no new file of the definitions, which takes four syncs."""
    harness = BrokerHarness()
    harness.declare("q")
    compact, compacted = Definitions.compact, list[Definitions]()

    def counted(definitions: Definitions) -> None:
        compacted.append(definitions)
        compact(definitions)

    monkeypatch.setattr(Definitions, "compact", counted)
    before = picture(harness)
    for end in (harness.restart, harness.kill, lambda: harness.cut(Random(1))):
        end()
        assert picture(harness) == before
    assert not compacted
    for number in range(10):
        harness.declare(f"q{number}")
        harness.broker.vhosts["/"].delete_queue(harness.broker.vhosts["/"].queues[f"q{number}"])
    harness.restart()
    assert picture(harness) == before and len(compacted) == 1


def test_what_the_first_start_defines_is_durable() -> None:
    harness = BrokerHarness()
    before = picture(harness)
    for seed in range(5):
        harness.cut(Random(seed), hostile=True)
        assert picture(harness) == before


def test_a_vhost_takes_its_bindings_between_predeclared_exchanges_with_it() -> None:
    """D2: they stayed defined, and the next start failed."""
    harness = BrokerHarness()
    vhost = harness.broker.add_vhost("x")
    vhost.bind("amq.topic", vhost.exchanges["amq.fanout"], "a.*", {})
    harness.broker.delete_vhost("x")
    harness.kill()
    assert list(harness.broker.vhosts) == ["/"]


def test_a_definition_without_what_it_belongs_to_does_not_hold_up_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """D2: it is passed over and named in the log; a queue gets its vhost back, for it has messages."""
    harness = BrokerHarness()
    harness.broker.define("binding", ("gone", "amq.topic", "exchange", "amq.fanout", "k", ""), {})
    harness.broker.define("binding", ("/", "gone", "exchange", "amq.fanout", "k", ""), {})
    vhost = harness.broker.add_vhost("v")
    queue = vhost.declare_queue("q", True, False, False, {}, None)
    queue.append_bytes(b"\0\1q", b"\0\0", b"message", -1, 0)
    harness.broker.undefine("vhost", ("v",))
    harness.settle_down()
    harness.kill()
    assert harness.broker.vhosts["v"].queues["q"].ready == 1
    assert len([r for r in caplog.records if "passed over" in r.message]) == 2


def test_wherever_the_first_start_ends_the_next_one_has_guest() -> None:
    """D2, P6: killed between the definitions of the vhost and of guest, it never had one."""
    whole = SimDisk()
    BrokerHarness(whole)
    for cut_at in range(1, whole.operations + 1):
        disk = SimDisk()
        disk.cut_at = cut_at
        with pytest.raises(PowerCut):
            BrokerHarness(disk)
        for found in (copy.deepcopy(disk).kill(), copy.deepcopy(disk).crash(Random(cut_at), hostile=True)):
            harness = BrokerHarness(found)
            user = harness.broker.users.authenticate("guest", "guest", True)
            assert user is not None and user.may("/", "configure", "q") and list(harness.broker.vhosts) == ["/"]


def test_power_that_goes_in_a_start_behind_a_kill_leaves_no_damage() -> None:
    """D3: the directory of a queue whose first message nobody had synced was gone, and the inventory said already that it was durable."""
    before = BrokerHarness()
    before.declare("q")
    before.settle_down()
    before.publish("q", b"message")
    before.turn()
    whole = copy.deepcopy(before.disk).kill()
    operations = whole.operations
    BrokerHarness(whole)
    for cut_at in range(operations + 1, whole.operations + 1):
        for seed in range(20):
            disk = copy.deepcopy(before.disk).kill()
            disk.cut_at = cut_at
            with pytest.raises(PowerCut):
                BrokerHarness(disk)
            again = BrokerHarness(disk.crash(Random(f"{cut_at} {seed}"), hostile=seed % 2 == 1))
            assert not again.store.alarms


def test_what_was_deleted_does_not_come_back() -> None:
    """W7: guest, with the public password, when the last vhost had been deleted."""
    harness = BrokerHarness()
    harness.broker.delete_vhost("/")
    harness.broker.users.delete("guest")
    harness.restart()
    assert not harness.broker.vhosts and not harness.broker.users.list()


def test_what_the_journal_brings_back_after_a_power_cut_is_flagged() -> None:
    """A11, T4: a transaction that was delivered before its queue was synced is applied again, and came as if it were new."""
    for seed in range(40):
        harness = BrokerHarness()
        for name in ("q", "other"):
            harness.declare(name)
        harness.settle_down()
        record = Record(
            appends=[Append(harness.queue(n).log.queue_id, address(n), b"\0\0", b"m") for n in ("q", "other")]
        )
        harness.broker.records.write(record, lambda r=record, b=harness.broker: b.apply(r), lambda: None)  # type: ignore[misc]
        harness.turn()
        harness.sync()  # the journal's new file
        harness.sync()  # the inventory, which knows it then
        assert [delivery.body for delivery in harness.take("q")] == [b"m"]
        harness.turn()
        harness.cut(Random(seed))
        assert [delivery.redelivered for delivery in harness.take("q")] == [True]
        harness.kill()
        assert [delivery.redelivered for delivery in harness.take("q")] == [True]
