"""Rates and samples of the counters, without waiting for them."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvitto.base import limits
from kvitto.broker.counts import Churn, Counts
from kvitto.broker.routing.route import Traffic
from kvitto.http import counts, rates
from kvitto.http.history import NO_SPANS, History, Span, Spans
from kvitto.http.marks import STEP, Marks, forget_others, freed
from kvitto.http.rates import NODE, PIECE, TOTAL, Rates
from kvitto.http.request import Problem

ZERO = dict.fromkeys(
    ("published", "delivered", "acked", "redelivered", "delivered_auto", "gets", "gets_auto", "gets_empty"), 0
) | dict.fromkeys(("ready", "unacked", "held", "dead_lettering"), 0)


class Thing(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]  # the fields may change, the object is the same one


def queue(**counts: int) -> Any:
    return Thing(**{**ZERO, "consumers": [], "stream": False, **counts})


def vhost(*queues: Any, **gone: int) -> Any:
    counts = Counts()
    vars(counts).update(gone)
    return Thing(gone=counts, queues=dict(enumerate(queues)), exchanges={}, traffic=Traffic())


def host(*vhosts: Any, gone: Counts | None = None) -> Any:
    broker = Thing(gone=gone or Counts(), vhosts=dict(enumerate(vhosts)), traffic=Traffic(), churn=Churn())
    hub = Thing(connections=(), connections_made=0, connections_closed=0, channels_made=0, channels=0)
    return Thing(broker=broker, hub=hub, store=Thing(disk=Thing(free_bytes=lambda: 7)))


def sample(found: Rates, now_s: float, host: Any, connections: Any = ()) -> None:
    for _ in found.sample(now_s, int(now_s * 1000), host, list(connections)):
        pass


def of_stats(found: Rates, thing: object, span: Span | None = None, now_s: float = 0.0) -> dict[str, Any]:
    return found.details(thing, counts.QUEUE_WIDTH, counts.QUEUE_STATS, counts.queue_stats, span, now_s)


def of_depth(found: Rates, thing: object, width: int, span: Span | None = None) -> dict[str, Any]:
    return found.details(thing, width, counts.DEPTHS, counts.depths, span, 0.0)


def test_a_rate_is_the_difference_of_the_last_two_samples() -> None:
    found, one = Rates(), queue(published=100)
    sample(found, 10.0, host(vhost(one)))
    assert of_stats(found, one)["publish_details"] == {"rate": 0.0}
    one.published, one.acked, one.delivered, one.delivered_auto = 150, 10, 10, 5
    sample(found, 15.0, host(vhost(one)))
    stats = of_stats(found, one)
    rate_of = {name: stats[f"{name}_details"]["rate"] for name in counts.QUEUE_STATS}
    assert {name: rate for name, rate in rate_of.items() if rate} == {
        "publish": 10.0,
        "ack": 1.0,
        "deliver_get": 2.0,
        "deliver": 1.0,
        "deliver_no_ack": 1.0,
    }
    sample(found, 20.0, host(vhost(one)))
    assert of_stats(found, one)["publish_details"] == {"rate": 0.0}


def test_what_is_new_counts_from_zero_and_what_is_gone_is_forgotten() -> None:
    found, one = Rates(), queue(published=20)
    sample(found, 0.0, host(vhost()))
    sample(found, 5.0, host(vhost(one)))
    assert found.of(one, 1) == (4.0,)
    sample(found, 10.0, host(vhost()))
    assert found.of(one, 1) == (0.0,)
    assert not [thing for thing in found._histories if thing is one]


def test_sums_do_not_fall_when_queues_and_virtual_hosts_are_deleted() -> None:
    found, one = Rates(), queue(published=20)
    gone = Counts()
    sample(found, 0.0, host(vhost(one), gone=gone))
    assert found._last[TOTAL][0][0] == 20
    gone.published = 20
    sample(found, 5.0, host(vhost(published=20), gone=gone))  # the queue is deleted
    assert found._last[TOTAL][0][0] == 20
    sample(found, 10.0, host(gone=gone))  # and its virtual host
    assert found._last[TOTAL][0][0] == 20


def test_very_many_are_sampled_in_pieces() -> None:
    """Ten thousand connections must not hold up the others."""
    found = Rates()
    made = [Thing(received_bytes=n, sent_bytes=0, channels={}) for n in range(2000)]
    for at in (0.0, 1.0):
        freed = 0 if at == 0.0 else -(-2002 // STEP)
        assert sum(1 for _ in found.sample(at, 0, host(), made)) == 2002 // PIECE + freed
    assert found.of(made[5], 2) == (0.0, 0.0)
    made[5].received_bytes += 7
    sample(found, 2.0, host(), made)
    assert found.of(made[5], 2) == (7.0, 0.0)


def test_the_numbers_of_a_sample_are_freed_in_steps() -> None:
    """Those of 100,000 busy queues, freed at once, held the loop for 50 ms every few seconds."""
    many: dict[object, float] = dict.fromkeys(range(10_000), 1.0)
    assert sum(1 for _ in freed(dict(many))) == 10_000 // STEP
    assert sum(1 for _ in forget_others(many, range(5000, 20_000))) >= 10
    assert [*many] == [*range(5000, 10_000)]


def test_the_age_of_a_delivery_is_forgotten_with_its_channel() -> None:
    marks, channels = Marks(), [Thing(unacked=1, next_tag=5) for _ in range(2000)]
    for channel in channels:
        marks.note(channel, 10.0)
    assert sum(1 for _ in marks.end()) > 2 and marks.age_s(channels[0], 3, 14.0) == 4.0
    marks.note(channels[1], 15.0)
    for _ in marks.end():
        pass
    assert marks.age_s(channels[0], 3, 20.0) == 0.0 and marks.age_s(channels[1], 3, 20.0) == 10.0


def test_how_fast_a_queue_grows_and_shrinks_is_a_rate_too() -> None:
    found, one = Rates(), queue(ready=10)
    sample(found, 10.0, host(vhost(one)))
    one.ready, one.unacked = 0, 5
    sample(found, 15.0, host(vhost(one)))
    expected = {"messages": -1.0, "messages_ready": -2.0, "messages_unacknowledged": 1.0}
    for of, width in ((one, counts.QUEUE_WIDTH), (TOTAL, counts.TOTAL_WIDTH)):
        assert of_depth(found, of, width) == {f"{name}_details": {"rate": rate} for name, rate in expected.items()}


def test_samples_are_those_that_rabbitmq_would_give() -> None:
    found, one = Rates(), queue()
    for at in range(1000, 1035, 5):
        one.published = at - 1000
        one.ready = 3
        sample(found, float(at), host(vhost(one)))
    publish = of_stats(found, one, Span(60_000, 5_000))["publish_details"]
    assert len(publish["samples"]) == 13
    assert [(s["timestamp"], s["sample"]) for s in publish["samples"]][:3] == [
        (1_030_000, 30),
        (1_025_000, 25),
        (1_020_000, 20),
    ]
    assert publish["samples"][-1] == {"timestamp": 970_000, "sample": 0}  # before it was there
    assert publish["avg_rate"] == 0.5 and publish["rate"] == 1.0
    assert publish["avg"] == pytest.approx(sum(range(0, 35, 5)) / 13)
    wide = of_stats(found, one, Span(60_000, 30_000))["publish_details"]["samples"]
    assert [s["timestamp"] for s in wide] == [1_020_000, 990_000, 960_000]
    assert of_depth(found, one, counts.QUEUE_WIDTH, Span(5_000, 5_000))["messages_details"]["samples"][0]["sample"] == 3


def test_an_hour_is_known_by_the_minute() -> None:
    history = History(born=False)
    for at in range(0, 4000, 5):
        history.add(at * 1000, (at,))
    rows = list(history.samples(Span(3_600_000, 60_000), 3_995_000))
    assert len(rows) == 61
    assert [row[0] for _, row in rows[:2]] == [3960 + 35, 3955]  # the last sample in the minute stands for it
    fine = list(history.samples(Span(600_000, 5_000), 3_995_000))
    assert [(at, row[0]) for at, row in fine] == [(at * 1000, at) for at in range(3995, 3390, -5)]


def test_samples_end_where_nothing_is_known() -> None:
    history = History(born=False)
    assert list(history.samples(Span(10_000, 5_000), 10_000)) == []
    history.add(10_000, (1,))
    assert [at for at, _ in history.samples(Span(60_000, 5_000), 10_000)] == [10_000]


def test_histories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first objects have one by themselves. Others get one when they are asked for, and lose it to those that are."""
    monkeypatch.setattr(rates, "AUTOMATIC", 4)
    monkeypatch.setattr(rates, "HTTP_HISTORIES_MAX", 6)
    found, queues = Rates(), [queue() for _ in range(10)]
    all_of_them = host(vhost(*queues))
    sample(found, 100.0, all_of_them)
    assert len(found._histories) == 4
    for one in queues[5:]:
        found.details(one, counts.QUEUE_WIDTH, counts.DEPTHS, counts.depths, Span(10_000, 5_000), 100.0)
    assert len(found._histories) == 6
    assert {TOTAL, NODE} <= found._histories.keys() and queues[5] in found._histories
    late = of_depth(found, queues[9], counts.QUEUE_WIDTH, Span(10_000, 5_000))
    assert "samples" not in late["messages_details"]  # no room while others are asked for
    sample(found, 2000.0, all_of_them)
    found.details(queues[9], counts.QUEUE_WIDTH, counts.DEPTHS, counts.depths, Span(10_000, 5_000), 2000.0)
    assert queues[9] in found._histories and len(found._histories) == 6


@pytest.mark.parametrize(
    "query",
    [
        {"lengths_age": "x", "lengths_incr": "5"},
        {"lengths_age": "5", "lengths_incr": "0"},
        {"msg_rates_age": str(5 * limits.HTTP_SAMPLES_MAX), "msg_rates_incr": "5"},
    ],
)
def test_wrong_spans_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(Problem):
        Spans.of(query)


def test_half_a_span_asks_for_nothing() -> None:
    assert Spans.of({"lengths_age": "60"}) == NO_SPANS
    assert Spans.of({"lengths_age": "60", "lengths_incr": "5"}).lengths == Span(60_000, 5_000)


def test_capacity_is_the_share_of_samples_without_a_backlog() -> None:
    found, one = Rates(), queue()
    assert found.capacity_of(one) == 0.0
    one.consumers = [object()]
    sample(found, 0.0, host(vhost(one)))
    assert found.capacity_of(one) == 1.0
    one.ready = 5
    for at in range(20):
        sample(found, float(at + 1), host(vhost(one)))
    assert found.capacity_of(one) < 0.02
    one.ready = 0
    for at in range(60):
        sample(found, float(at + 30), host(vhost(one)))
    assert found.capacity_of(one) == 1.0 and not found._capacity


def test_what_does_not_change_is_idle_since_then() -> None:
    found, one = Rates(), queue()
    sample(found, 1.0, host(vhost(one)))
    assert found.idle_since_ms(one) is None
    sample(found, 6.0, host(vhost(one)))
    assert found.idle_since_ms(one) == 1000


@pytest.fixture(autouse=True)
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "of_node", lambda _: (1, 2, 3, 4))
