"""Rates from two samples, without waiting for them."""

from types import SimpleNamespace
from typing import Any

from kvitto.broker.counts import Counts
from kvitto.http.rates import TOTAL, Rates


def thing(**counts: int) -> Any:
    zero = {"published": 0, "delivered": 0, "acked": 0, "redelivered": 0}
    return SimpleNamespace(**{**zero, **counts})


class Queue(SimpleNamespace):
    __hash__ = object.__hash__


def broker(*queues: Any) -> Any:
    return SimpleNamespace(gone=Counts(), listed=list(queues))


def test_a_rate_is_the_difference_of_the_last_two_samples() -> None:
    rates, queue = Rates(), Queue(**vars(thing(published=100)))
    rates.sample(10.0, broker(queue), [])
    assert rates.of(queue, 4) == (0.0, 0.0, 0.0, 0.0)
    queue.published, queue.acked = 150, 5
    rates.sample(15.0, broker(queue), [])
    assert rates.of(queue, 4) == (10.0, 0.0, 1.0, 0.0)
    assert rates.of(TOTAL, 4) == (10.0, 0.0, 1.0, 0.0)
    rates.sample(20.0, broker(queue), [])
    assert rates.of(queue, 4) == (0.0, 0.0, 0.0, 0.0)


def test_what_is_new_counts_from_zero_and_what_is_gone_is_forgotten() -> None:
    rates, queue = Rates(), Queue(**vars(thing(published=20)))
    rates.sample(0.0, broker(), [])
    rates.sample(5.0, broker(queue), [])
    assert rates.of(queue, 4)[0] == 4.0
    rates.sample(10.0, broker(), [])
    assert rates.of(queue, 4)[0] == 0.0
