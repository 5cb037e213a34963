"""The engine of the load generator: rates are spread over time, and an event is served without a walk over all connections."""

import select
from collections import Counter
from dataclasses import replace
from typing import Any, Protocol

import pytest

from kvitto.perf import engine, workers
from kvitto.perf.engine import Engine, Rounds
from kvitto.perf.options import Options, Quota
from kvitto.perf.workers import Consumer, Publisher, Worker


class HasUrl(Protocol):
    url: str


def rounds(count: int, period_s: float) -> Rounds:
    workers: list[Any] = list(range(count))
    return Rounds(workers, period_s, 0.0)


def test_workers_are_due_one_after_the_other_and_never_together() -> None:
    found = rounds(4, 1.0)
    assert found.due(0.2) == []
    due: list[list[Any]] = [[*found.due(tenth / 10)] for tenth in range(3, 14)]
    assert [tuple(times) for step in due for times in step] == [(0, 1), (1, 1), (2, 1), (3, 1), (0, 1)]
    assert all(len(step) <= 1 for step in due)


@pytest.mark.parametrize("now", [0.9, 1.01, 7.6, 1000.3])
def test_what_was_missed_is_made_up_for_once(now: float) -> None:
    found = rounds(3, 1.0)
    total: Counter[Any] = Counter()
    for moment in (0.4, now, now):
        for worker, times in found.due(moment):
            total[worker] += times
    assert sum(total.values()) == int(now * 3) and max(total.values()) - min(total[k] for k in range(3)) <= 1


def test_a_timer_of_less_than_a_millisecond_ticks() -> None:
    fd = engine.periodic_timer(0.0005)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(10_000)
    workers.serve({}, [(fd, select.POLLIN)])  # a descriptor of no worker is a timer, which is read
    assert poll.poll(10_000)


def test_only_connections_with_events_are_served(kvitto_broker: HasUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that waits for each confirm is; consumers of a queue without messages are not."""
    options = Options(uri=kvitto_broker.url, max_unconfirmed=1, seconds=0.3)
    publisher = Publisher(options, Quota(None), 1)
    for queue in ("perf-test", "empty"):
        publisher.channel.queue_declare(queue)
    idle = [Consumer(replace(options, queue="empty"), number) for number in range(5)]
    served: Counter[int] = Counter()
    serve = workers.serve

    def counting(known: dict[int, Worker], ready: list[tuple[int, int]]) -> None:
        served.update(fd for fd, _ in ready)
        serve(known, ready)

    monkeypatch.setattr(engine, "serve", counting)
    Engine(options, [publisher], idle).run(lambda seconds, published, consumed: None)
    assert set(served) == {publisher.fd}
    assert 0 < publisher.window.acked <= served[publisher.fd]
    for worker in (publisher, *idle):
        worker.connection.close()
