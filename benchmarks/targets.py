"""What has to be shown, checked against what was measured. A target that was not measured is neither met nor missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import Results

KVITTO, RABBITMQ = "Kvitto", "RabbitMQ"
Look = Callable[[Results], float | None]


@dataclass(frozen=True, slots=True)
class Target:
    """`look` at least, or at most, what `bound` says."""

    letter: str
    text: str
    look: Look
    at_least: bool
    bound: Look
    unit: str = ""

    def met(self, results: Results) -> bool | None:
        found, bound = self.look(results), self.bound(results)
        if found is None or bound is None:
            return None
        return found >= bound if self.at_least else found <= bound


def value(scenario: str, metric: str) -> Look:
    """Kvitto's median."""

    def look(results: Results) -> float | None:
        found = results.figure(scenario, KVITTO, metric)
        return found.median if found else None

    return look


def ratio(scenario: str, metric: str) -> Look:
    """Kvitto's median over RabbitMQ's."""
    return lambda results: results.ratio(scenario, metric, KVITTO, RABBITMQ)


def difference(scenario: str, metric: str, less: str) -> Look:
    """One of Kvitto's medians less another."""

    def look(results: Results) -> float | None:
        found, other = results.figure(scenario, KVITTO, metric), results.figure(scenario, KVITTO, less)
        return found.median - other.median if found and other else None

    return look


def slower(series: str, metric: str) -> Look:
    """How much slower Kvitto is at the end of a series than at its beginning, in percent; below 0 = faster."""

    def look(results: Results) -> float | None:
        members = sorted((s for s in results.scenarios if s.series == series), key=lambda s: s.x)
        found = [figure.median for s in members if (figure := results.figure(s.key, KVITTO, metric))]
        return (1 - found[-1] / found[0]) * 100 if len(found) > 1 and found[0] else None

    return look


def fixed(number: float) -> Look:
    return lambda results: number


def sync_plus(scenario: str, extra_us: float, unit_us: float) -> Look:
    """One sync of this disk, as measured beside the scenario, and something more; in units of `unit_us`."""

    def look(results: Results) -> float | None:
        sync = results.fdatasync_us(scenario)
        return (sync + extra_us) / unit_us if sync is not None else None

    return look


def at_least(letter: str, text: str, look: Look, bound: float, unit: str) -> Target:
    return Target(letter, text, look, True, fixed(bound), unit)


def at_most(letter: str, text: str, look: Look, bound: float | Look, unit: str) -> Target:
    return Target(letter, text, look, False, bound if callable(bound) else fixed(bound), unit)


ONE_M, TEN_M = "i-backlog-1M", "i-backlog-10M"
TARGETS = [
    at_least("a", "consumed, against RabbitMQ", ratio("a", "consumed_per_s"), 15, "x"),
    at_least("a", "consumed", value("a", "consumed_per_s"), 1.5e6, "msg/s"),
    at_most("a", "broker CPU per message", value("a", "cpu_us"), 0.35, "µs"),
    at_least("b", "published, against RabbitMQ", ratio("b", "published_per_s"), 15, "x"),
    at_least("c", "consumed, against RabbitMQ", ratio("c", "consumed_per_s"), 15, "x"),
    at_most("d", "broker CPU per message, 16 bytes", value("d-16", "cpu_us"), 0.9, "µs"),
    at_least("d", "confirmed, 16 bytes, against RabbitMQ", ratio("d-16", "confirmed_per_s"), 14, "x"),
    at_least("d", "confirmed, 1 KiB, against RabbitMQ", ratio("d-1024", "confirmed_per_s"), 10, "x"),
    at_least("e", "confirm one by one, against RabbitMQ", ratio("e", "confirmed_per_s"), 2, "x"),
    at_most("e", "each (one fdatasync + 0.15 ms)", value("e", "receipt_us"), sync_plus("e", 150, 1), "µs"),
    at_most("f", "streamed confirms, against RabbitMQ", ratio("f", "streamed_s"), 0.2, "x"),
    at_most("f", "a transaction each, against RabbitMQ", ratio("f", "tx_s"), 0.5, "x"),
    at_most("g", "p99, against RabbitMQ", ratio("g", "latency_p99_ms"), 0.5, "x"),
    at_most("g", "p99 (3 ms + one fdatasync)", value("g", "latency_p99_ms"), sync_plus("g", 3000, 1000), "ms"),
    at_most("i", "RSS of an empty broker", value(TEN_M, "empty_rss_mib"), 60, "MiB"),
    at_most("i", "RSS added by 10 M waiting", value(TEN_M, "added_rss_mib"), 30, "MiB"),
    at_most("i", "RSS with 10 M waiting", value(TEN_M, "full_rss_mib"), 150, "MiB"),
    at_most("i", "RSS added by 1,000 queues", value("i-queues", "added_rss_mib"), 20, "MiB"),
    at_most("i", "RSS added by 1,000 connections", value("i-connections", "added_rss_mib"), 50, "MiB"),
    at_most("i", "ready with 10 M waiting, after SIGKILL", value(TEN_M, "kill_ready_s"), 2, "s"),
    at_most("i", "the same over an empty broker", difference(TEN_M, "kill_ready_s", "cold_start_s"), 0.3, "s"),
    at_most("i", "ready with 10 M waiting, after SIGTERM", value(TEN_M, "term_ready_s"), 2, "s"),
    at_most("i", "the same over an empty broker", difference(TEN_M, "term_ready_s", "cold_start_s"), 0.3, "s"),
    at_most("i", "missing after restarts with 10 M", value(TEN_M, "missing"), 0, "messages"),
    at_most("i", "cold start", value(ONE_M, "cold_start_s"), 0.6, "s"),
    at_most("j", "slower at 1 M unconfirmed than at 1,000", slower("j", "confirmed_per_s"), 10, "%"),
    at_most("k", "publish slower at 10 M deep than at 1,000", slower("k-p", "confirmed_per_s"), 10, "%"),
    at_most("k", "consume slower at 10 M deep than at 1,000", slower("k-c", "consumed_per_s"), 10, "%"),
]
