"""The oracle finds each mistake that a broker can make: the tests make it by hand."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvitto.client import Batch
from kvitto.client.codec import Scanner
from kvitto.torture import load
from kvitto.torture.load import DEAD, GROUP, IDLE, MOVED, QUEUES, A, B, C, Load, Publisher, Target
from kvitto.torture.oracle import ACKED, CONFIRMED, NEVER, REFUSED, REJECTED, REQUEUED, SAFE, Journal, body, runs
from kvitto.wire import methods as m
from tests.protocol.raw import content

P, Q, T = 0, 1, 2


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Load]:
    journal = Journal(tmp_path / "journal")
    yield Load(journal, Target())
    journal.close()


def batch(*messages: tuple[int, int], flagged: Sequence[int] = ()) -> Batch:
    """Deliveries of (flow, number), the tags from 1 on; `flagged`: numbers that are flagged redelivered."""
    scanner = Scanner()
    sink = scanner.open(1)
    for tag, (flow, number) in enumerate(messages, 1):
        deliver = m.BasicDeliver("c", tag, number in flagged, "", "")
        scanner.inp.add(content(1, deliver, b"\0\0", body(flow, 1, number)))
        scanner.scan(0)
    return sink.batch


def publish(work: Load, flow: int, count: int, mark: int = CONFIRMED) -> None:
    line = work.oracle.flows[flow]
    first = line.take(count)
    if mark:
        line.mark(first, first + count, mark)


def everywhere(work: Load, flow: int, numbers: Sequence[int], *but: str) -> None:
    """Deliver these from all queues where they belong."""
    routes = work.oracle.flows[flow].routes
    for queue in (q for q in QUEUES if q not in but):
        given = [(flow, n) for n in numbers if queue in routes[n % len(routes)][1]]
        if given:
            work.oracle.ledgers[queue].deliver(batch(*given), {})


def found(work: Load) -> dict[str, int]:
    work.oracle.close_chapter()
    return work.oracle.findings.counts


def test_nothing_wrong_is_nothing_found(work: Load) -> None:
    publish(work, P, 200)
    publish(work, T, GROUP)
    everywhere(work, P, range(200))
    everywhere(work, T, range(GROUP))
    assert work.oracle.judge() == []
    assert found(work) == {}
    assert work.oracle.groups == 1


def test_a_confirmed_message_that_never_comes_is_lost_in_each_queue(work: Load) -> None:
    """P2. What was not confirmed may be missing."""
    publish(work, P, 70)
    publish(work, P, 5, 0)
    everywhere(work, P, [n for n in range(70) if n != 63], IDLE)
    assert len(work.oracle.judge()) == 2 + 70
    assert found(work) == {"lost": 72}
    assert "torture.a: p 63" in work.oracle.findings.samples["lost"]
    assert work.oracle.judge() == [], "the next chapter is about other messages"


def test_what_was_never_published_or_is_damaged_is_found(work: Load) -> None:
    publish(work, P, 3)
    ledger = work.oracle.ledgers[A]
    assert ledger.deliver(batch((P, 3), (9, 0)), {}) == [(1, -1, 0), (2, -1, 0)]
    bad = batch((P, 0), (P, 63))
    bad.bodies.data.data[70] ^= 1
    publish(work, P, 61)
    ledger.deliver(bad, {})
    assert work.oracle.findings["invented"] == 2 and work.oracle.findings["damaged"] == 1


def test_a_settled_message_must_not_come_back(work: Load) -> None:
    """A11: acked and known to be synced; before that it may, and a requeued one has to."""
    publish(work, P, 4)
    ledger = work.oracle.ledgers[A]
    ledger.unread = 1
    items = ledger.deliver(batch(*((P, n) for n in range(4))), {})
    ledger.settle(items[:2], ACKED)
    ledger.settle(items[:1], SAFE)
    ledger.settle(items[3:], REQUEUED)
    ledger.deliver(batch(*((P, n) for n in range(4)), flagged=range(4)), {})
    counts = work.oracle.findings.counts
    assert counts == {"settled, came back": 1, "acked, came back": 1, "requeued, came back": 1, "doubled, flagged": 3}


def test_flags_that_are_missing_or_too_many_are_found(work: Load) -> None:
    """A9."""
    publish(work, P, 3)
    ledger = work.oracle.ledgers[A]
    ledger.unread = 1
    ledger.deliver(batch((P, 0), (P, 1), (P, 2), flagged=(1, 2)), {})
    ledger.deliver(batch((P, 0)), {})
    counts = work.oracle.findings.counts
    assert counts == {"flagged, never seen": 2, "flagged, never delivered": 1, "doubled, not flagged": 1}


@pytest.mark.parametrize("numbers", [(0, 1, 1, 2), (1, 2, 0, 1), (0, 1, 2, 0)])
def test_what_comes_twice_in_one_batch_is_found(work: Load, numbers: tuple[int, ...]) -> None:
    """Behind itself, or behind others; it is out of order as well."""
    publish(work, P, 3)
    work.oracle.ledgers[A].deliver(batch(*((P, n) for n in numbers)), {})
    assert work.oracle.findings["doubled, not flagged"] == 1
    assert work.oracle.findings["order"] == 1


def test_order_is_broken_within_a_batch_too_and_by_each_publisher_alone(work: Load) -> None:
    publish(work, P, 10)
    publish(work, Q, 10)
    ledger = work.oracle.ledgers[B]
    last: dict[Any, Any] = {}
    ledger.deliver(batch((P, 4), (Q, 3), (P, 5), (Q, 4)), last)
    assert work.oracle.findings["order"] == 0
    ledger.deliver(batch((P, 7), (Q, 6), (P, 6), (Q, 7)), last)
    assert work.oracle.findings.samples["order"] == ["torture.b: p 6 after 7"]


def test_order_holds_in_a_channel_and_for_a_publishers_channel(work: Load) -> None:
    publish(work, P, 10)
    ledger = work.oracle.ledgers[A]
    last: dict[int, int] = {}
    ledger.deliver(batch((P, 0), (P, 5), (P, 7)), last)
    ledger.deliver(batch((P, 2), flagged=[2]), last)
    assert work.oracle.findings["order"] == 0
    ledger.deliver(batch((P, 6)), last)
    assert work.oracle.findings.samples["order"] == ["torture.a: p 6 after 7"]
    ledger.deliver(batch((P, 1)), {})
    assert work.oracle.findings["order"] == 1, "another channel"


def test_where_it_is_promised_order_holds_for_redeliveries_too(work: Load) -> None:
    """A5; but for what the consumer has sent back itself."""
    publish(work, P, 10)
    work.oracle.whole_order = True
    ledger = work.oracle.ledgers[A]
    ledger.unread = 10
    last: dict[int, int] = {}
    items = ledger.deliver(batch((P, 0), (P, 5), (P, 7)), last)
    ledger.settle(items[:1], REQUEUED)
    ledger.deliver(batch((P, 0), flagged=[0]), last)
    assert work.oracle.findings["order"] == 0
    ledger.deliver(batch((P, 6), flagged=[6]), last)
    assert work.oracle.findings["order"] == 1


def test_half_a_transaction_is_found(work: Load) -> None:
    """T4: also one that nobody has confirmed, and one that was rolled back."""
    publish(work, T, 2 * GROUP, 0)
    publish(work, T, GROUP, NEVER)
    everywhere(work, T, range(GROUP), IDLE)
    everywhere(work, T, range(GROUP, 2 * GROUP))
    everywhere(work, T, [2 * GROUP])
    counts = found(work)
    assert counts.pop("half transactions") == 2 + 3
    assert counts == {}


def test_dead_letters_are_in_one_queue_and_moved_on_whole(work: Load) -> None:
    """X4, T4."""
    publish(work, Q, 10)
    everywhere(work, Q, range(10))
    c, dead, moved = (work.oracle.ledgers[queue] for queue in (C, DEAD, MOVED))
    items = [(n + 1, Q, n) for n in (0, 3, 6)]
    c.settle(items, ACKED | REJECTED)
    c.settle(items, SAFE)
    assert work.oracle.judge() == [f"{DEAD}: q {n}" for n in (0, 3, 6)]
    taken = dead.deliver(batch((Q, 0), (Q, 3), (Q, 6), (Q, 9)), {})
    dead.settle(taken, ACKED)
    dead.settle(taken, SAFE)
    moved.deliver(batch((Q, 0), (Q, 3), (Q, 6)), {})
    assert work.oracle.judge() == [f"{MOVED}: q 9"]
    c.deliver(batch((Q, 6), flagged=[6]), {})
    counts = found(work)
    assert counts["half dead letters"] == 1 and counts["lost"] == 1
    assert work.oracle.findings.samples["invented"] == [f"{DEAD}: q 9 was not rejected"]


def test_a_dead_letter_that_is_moved_and_still_there_is_found(work: Load) -> None:
    """T4, X4: half of the mover's transaction was kept, so it does all of it again."""
    publish(work, Q, 3)
    everywhere(work, Q, range(3))
    c, dead, moved = (work.oracle.ledgers[queue] for queue in (C, DEAD, MOVED))
    c.settle([(1, Q, 0)], ACKED | REJECTED)
    taken = dead.deliver(batch((Q, 0)), {})
    dead.settle(taken, ACKED)
    dead.settle(taken, SAFE)
    moved.deliver(batch((Q, 0)), {})
    assert found(work) == {}
    dead.deliver(batch((Q, 0), flagged=[0]), {})
    moved.deliver(batch((Q, 0)), {})
    assert found(work) == {"settled, came back": 1, "doubled, flagged": 1, "doubled, not flagged": 1}


def test_what_was_refused_may_be_anywhere_or_nowhere(work: Load) -> None:
    """C6: a nack is no promise."""
    publish(work, P, 4, REFUSED)
    work.oracle.ledgers[A].deliver(batch((P, 1)), {})
    assert work.oracle.judge() == [] and found(work) == {}


@pytest.mark.parametrize(
    ("confirms", "wrong"),
    [
        ([(3, True, True), (4, False, True), (10, True, True)], 0),
        ([(5, False, True), (2, False, True), (5, True, False)], 0),
        ([(0, True, True)], 0),
        ([(5, False, True), (5, False, True)], 1),
        ([(5, True, True), (3, True, True)], 1),
        ([(5, True, True), (3, False, False)], 1),
        ([(11, False, True)], 1),
        ([(11, True, True), (0, False, True)], 2),
    ],
)
def test_each_publish_is_confirmed_once(work: Load, confirms: list[tuple[int, bool, bool]], wrong: int) -> None:
    """C5."""
    publisher = work.publishers[0]
    assert isinstance(publisher, Publisher)
    publisher.flow.take(7)
    publisher.first, publisher.sent = publisher.flow.take(10), 10
    for confirm in confirms:
        publisher.confirm(*confirm)
    assert work.oracle.findings["confirms"] == wrong


def test_the_journal_has_the_numbers_before_they_are_published(work: Load) -> None:
    publish(work, P, 3)
    ledger = work.oracle.ledgers[B]
    ledger.settle(ledger.deliver(batch((P, 0), (P, 1), (P, 2)), {}), ACKED)
    text = work.oracle.journal.path.read_text().splitlines()
    assert text[0].startswith("intend p 0 ") and text[1:] == ["confirmed p 0 3", f"acked {B} p 0-2"]


def test_runs() -> None:
    assert runs([7, 8, 9, 12, 14, 15]) == "7-9 12 14-15"


def test_bodies_of_all_sizes_are_what_the_oracle_expects(work: Load) -> None:
    flow = work.oracle.flows[P]
    flow.take(4200)
    for first in (0, 50, 4090):
        column = load.bodies(flow, first, 20)
        assert column.tolist() == [body(P, 0, first + k) for k in range(20)]
