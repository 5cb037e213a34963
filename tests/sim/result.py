"""What a run of the simulation has shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.simdisk import PowerCut


@dataclass
class Result:
    """How many states or failures were tried, what was wrong with any, and what else is to be told."""

    seed: int
    tried: int = 0
    findings: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


@contextmanager
def finding(result: Result, where: str) -> Iterator[None]:
    """Whatever goes wrong in here is one."""
    try:
        yield
    except (Exception, PowerCut) as error:  # noqa: BLE001
        result.findings.append(f"{where}: {type(error).__name__}: {error}")
