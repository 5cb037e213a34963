"""The names of all figures, with units and with what is better; and how a generator's JSON becomes such figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
CLOCK_S = 0.001
"""The generator rounds its times to this."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a table; None where neither more nor less is better."""

    label: str
    unit: str
    more_is_better: bool | None = None


METRICS = {
    "published_per_s": Metric("published", "msg/s", True),
    "consumed_per_s": Metric("consumed", "msg/s", True),
    "confirmed_per_s": Metric("confirmed", "msg/s", True),
    "operations_per_s": Metric("operations", "1/s", True),
    "gigabytes_per_s": Metric("bodies consumed", "GB/s", True),
    "receipt_us": Metric("each, waited for", "µs", False),
    "streamed_s": Metric("streamed confirms", "s", False),
    "tx_s": Metric("a transaction each", "s", False),
    "tx_to_streamed": Metric("transactions / streamed", "x"),
    "latency_p50_ms": Metric("latency, median", "ms", False),
    "latency_p95_ms": Metric("latency, p95", "ms", False),
    "latency_p99_ms": Metric("latency, p99", "ms", False),
    "latency_max_ms": Metric("latency, max", "ms", False),
    "cpu_us": Metric("broker CPU per message", "µs", False),
    "generator_us": Metric("generator CPU per message", "µs"),
    "broker_cores": Metric("broker CPU", "cores"),
    "generator_cores": Metric("generator CPU", "cores"),
    "rss_mib": Metric("broker RSS after it", "MiB", False),
    "cold_start_s": Metric("start on an empty directory", "s", False),
    "empty_rss_mib": Metric("RSS, empty", "MiB", False),
    "full_rss_mib": Metric("RSS, with them", "MiB", False),
    "added_rss_mib": Metric("RSS, what they added", "MiB", False),
    "kill_ready_s": Metric("ready after SIGKILL", "s", False),
    "kill_rss_mib": Metric("RSS then", "MiB", False),
    "stop_s": Metric("time to stop with SIGTERM", "s", False),
    "term_ready_s": Metric("ready after SIGTERM", "s", False),
    "term_rss_mib": Metric("RSS then", "MiB", False),
    "missing": Metric("missing after both restarts", "messages", False),
}
"""In the order of the report."""


def load_values(
    result: Mapping[str, Any], cpu_s: float, per: str, size: int, one_by_one: bool = False
) -> dict[str, float]:
    """Figures from the JSON of `kvitto perf` or `benchmarks.load`, and from the CPU seconds that the broker used.

    A generator that was told the broker's pid knows better which of them belong to the load.
    """
    if "seconds" in result:
        return _receipts(result["seconds"])
    cpu_s = result.get("broker_cpu_seconds", cpu_s)
    elapsed = max(result["elapsed_seconds"], CLOCK_S)
    values = {"broker_cores": cpu_s / elapsed, "generator_cores": result["cpu_seconds"] / elapsed}
    for name in ("published", "consumed", "confirmed", "operations"):
        if result.get(name):
            values[f"{name}_per_s"] = result[name] / elapsed
    if size >= MIB and result.get("consumed"):
        values["gigabytes_per_s"] = result["consumed"] * size / elapsed / 1e9
    if one_by_one and result.get("confirmed"):
        values["receipt_us"] = 1e6 / values["confirmed_per_s"]
    count = divisor(result, per)
    if count:
        values["cpu_us"] = cpu_s / count * 1e6
        values["generator_us"] = result["cpu_seconds"] / count * 1e6
    for name, value in result.get("latency_us", {}).items():
        if f"latency_{name}_ms" in METRICS:
            values[f"latency_{name}_ms"] = value / 1000
    return values


def _receipts(seconds: Mapping[str, float]) -> dict[str, float]:
    values = {f"{way}_s": value for way, value in seconds.items()}
    if {"tx", "streamed"} <= set(seconds):
        values["tx_to_streamed"] = seconds["tx"] / max(seconds["streamed"], 1e-9)
    return values


def divisor(result: Mapping[str, Any], per: str) -> float:
    """How many messages the broker's CPU is shared by; `mean` where not all that was published arrived in time."""
    if per == "mean":
        return float(result["published"] + result["consumed"]) / 2
    return float(result.get(per, 0))
