"""From a generator's JSON to figures."""

import pytest

from benchmarks.metrics import METRICS, load_values

RUN = {"elapsed_seconds": 2.0, "published": 1000, "consumed": 600, "cpu_seconds": 1.0}


def test_rates_and_cpu_per_message() -> None:
    values = load_values(RUN, 0.0008, "mean", 16)
    assert values["published_per_s"] == 500
    assert values["consumed_per_s"] == 300
    assert values["generator_cores"] == 0.5
    assert values["cpu_us"] == pytest.approx(1.0)
    assert load_values(RUN, 0.0008, "published", 16)["cpu_us"] == pytest.approx(0.8)
    assert "gigabytes_per_s" not in values


def test_a_publisher_that_waits_for_each_confirm_has_a_time_for_each() -> None:
    run = {**RUN, "confirmed": 1000, "consumed": 0}
    assert load_values(run, 1.0, "confirmed", 16, one_by_one=True)["receipt_us"] == 2000
    assert "receipt_us" not in load_values(run, 1.0, "confirmed", 16)


def test_large_bodies_are_counted_in_bytes() -> None:
    assert load_values(RUN, 1.0, "mean", 1 << 20)["gigabytes_per_s"] == pytest.approx(300 * (1 << 20) / 1e9)


def test_latencies_are_in_milliseconds() -> None:
    values = load_values({**RUN, "latency_us": {"p50": 500.0, "p99": 1500.0, "p99.9": 1.0}}, 1.0, "mean", 16)
    assert values["latency_p50_ms"] == 0.5
    assert values["latency_p99_ms"] == 1.5
    assert set(values) <= set(METRICS)


def test_receipts_have_their_ratio() -> None:
    values = load_values({"seconds": {"streamed": 0.5, "tx": 4.0}}, 1.0, "", 16)
    assert values == {"streamed_s": 0.5, "tx_s": 4.0, "tx_to_streamed": 8.0}


def test_operations_share_the_cpu_of_a_churn() -> None:
    run = {"elapsed_seconds": 1.0, "operations": 4000, "cpu_seconds": 0.1}
    values = load_values(run, 0.4, "operations", 16)
    assert values["operations_per_s"] == 4000
    assert values["cpu_us"] == pytest.approx(100)
