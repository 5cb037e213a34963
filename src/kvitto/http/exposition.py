"""Prometheus' text format: lines of metrics, and bodies that are made of them while they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvitto.broker.latencies import Histogram
from kvitto.http.slices import Slices

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PIECE = 500
"""The number of lines that are sent together."""

Number = int | float
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """A metric with a value for each object of a kind, such as each queue."""

    name: str
    kind: str
    """Prometheus' type: counter or gauge."""
    text: str
    value: Callable[[T], Number]


def encoded(lines: Iterable[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")


def head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def single(name: str, kind: str, text: str, value: Number, labels: str = "") -> list[str]:
    return [*head(name, kind, text), f"{name}{labels} {value}"]


def gauge(name: str, text: str, value: Number) -> list[str]:
    return single(name, "gauge", text, value)


def counter(name: str, text: str, value: Number) -> list[str]:
    return single(name, "counter", text, value)


def escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels(**values: str) -> str:
    """Return labels in braces."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}"


def histogram(name: str, text: str, parts: Sequence[tuple[str, Histogram]], unit: float) -> list[str]:
    """Return a histogram for each part, which is (labels without braces, values). `unit` is what 1 in a value stands for."""
    lines = head(name, "histogram", text)
    for given, values in parts:
        comma = "," if given else ""
        count = 0
        for bound, count in values.buckets():
            le = "+Inf" if bound is None else f"{bound * unit:g}" if unit != 1 else written(bound)
            lines.append(f'{name}_bucket{{{given}{comma}le="{le}"}} {count}')
        braces = f"{{{given}}}" if given else ""
        lines += (f"{name}_sum{braces} {values.sum * unit:.10g}", f"{name}_count{braces} {count}")
    return lines


def written(bound: int) -> str:
    """Return a bound as Prometheus' own libraries write it: RabbitMQ's dashboard looks for `100.0` and `1e+06`."""
    return f"{bound:.1f}" if bound < 1_000_000 else f"{bound:.0e}"


async def of_each(
    slices: Slices, metrics: Sequence[Metric[T]], prefix: str, things: Sequence[T], named: Callable[[T], str]
) -> AsyncIterator[bytes]:
    """Yield these metrics of many objects, in pieces. `named` returns the labels of an object."""
    braces = []
    for thing in things:
        braces.append(named(thing))
        await slices.rest()
    for metric in metrics:
        name, value = prefix + metric.name, metric.value
        lines = head(name, metric.kind, metric.text)
        for thing, given in zip(things, braces, strict=True):
            lines.append(f"{name}{given} {value(thing)}")
            if len(lines) >= PIECE:
                yield encoded(lines)
                lines.clear()
            await slices.rest()
        yield encoded(lines)
