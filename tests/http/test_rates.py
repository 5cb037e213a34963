"""Rates from two samples, without waiting for them."""

from types import SimpleNamespace
from typing import Any

from kvitto.broker.counts import Counts
from kvitto.http.rates import PIECE, TOTAL, Rates


def thing(**counts: int) -> Any:
    zero = {
        "published": 0,
        "delivered": 0,
        "acked": 0,
        "redelivered": 0,
        "ready": 0,
        "unacked": 0,
        "held": 0,
        "dead_lettering": 0,
    }
    return SimpleNamespace(**{**zero, **counts})


class Queue(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]  # the fields may change, the queue is the same one


class Connection(Queue):
    pass


def broker(*queues: Any) -> Any:
    return SimpleNamespace(gone=Counts(), listed=list(queues))


def sample(rates: Rates, now_s: float, broker: Any, connections: list[Any]) -> None:
    for _ in rates.sample(now_s, broker, connections):
        pass


def test_a_rate_is_the_difference_of_the_last_two_samples() -> None:
    rates, queue = Rates(), Queue(**vars(thing(published=100)))
    sample(rates, 10.0, broker(queue), [])
    assert rates.of(queue, 4) == (0.0, 0.0, 0.0, 0.0)
    queue.published, queue.acked = 150, 5
    sample(rates, 15.0, broker(queue), [])
    assert rates.of(queue, 4) == (10.0, 0.0, 1.0, 0.0)
    assert rates.of(TOTAL, 4) == (10.0, 0.0, 1.0, 0.0)
    sample(rates, 20.0, broker(queue), [])
    assert rates.of(queue, 4) == (0.0, 0.0, 0.0, 0.0)


def test_what_is_new_counts_from_zero_and_what_is_gone_is_forgotten() -> None:
    rates, queue = Rates(), Queue(**vars(thing(published=20)))
    sample(rates, 0.0, broker(), [])
    sample(rates, 5.0, broker(queue), [])
    assert rates.of(queue, 4)[0] == 4.0
    sample(rates, 10.0, broker(), [])
    assert rates.of(queue, 4)[0] == 0.0


def test_very_many_are_sampled_in_pieces() -> None:
    """Ten thousand connections must not hold up the others."""
    rates = Rates()
    made = [Connection(received_bytes=n, sent_bytes=0) for n in range(2000)]
    for at in (0.0, 1.0):
        assert sum(1 for _ in rates.sample(at, broker(), made)) == 2001 // PIECE
    assert rates.of(made[5], 2) == (0.0, 0.0)
    made[5].received_bytes += 7
    sample(rates, 2.0, broker(), made)
    assert rates.of(made[5], 2) == (7.0, 0.0)


def test_how_fast_a_queue_grows_and_shrinks_is_a_rate_too() -> None:
    """It stayed at 0."""
    rates, queue = Rates(), Queue(**vars(thing(ready=10)))
    sample(rates, 10.0, broker(queue), [])
    queue.ready, queue.unacked = 0, 5
    sample(rates, 15.0, broker(queue), [])
    expected = {"messages": -1.0, "messages_ready": -2.0, "messages_unacknowledged": 1.0}
    for of in (queue, TOTAL):
        assert rates.of_depth(of) == {f"{name}_details": {"rate": rate} for name, rate in expected.items()}
