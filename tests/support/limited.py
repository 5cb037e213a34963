"""Limits of a broker that runs already, for one test."""

from __future__ import annotations

from dataclasses import replace

from kvitto.broker.broker import Broker


def limit(broker: Broker, **values: float) -> None:
    """Give the broker these limits from now on, however small they are (kvitto/base/limits.py)."""
    broker.limits = replace(broker.limits, **values)  # type: ignore[arg-type]
