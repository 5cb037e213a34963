"""Reads arguments one by one. Returns a value of the right type and size, or raises InvalidArgument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvitto.base.limits import SHORTSTR_MAX

DAY_MS = 86_400_000
AGE_UNITS_MS = {"Y": 365 * DAY_MS, "M": 30 * DAY_MS, "D": DAY_MS, "h": 3_600_000, "m": 60_000, "s": 1000}
NUMBER_MAX = (1 << 63) - 1


class InvalidArgument(ValueError):
    """No queue, or not this queue, can have the argument."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class ArgumentReader:
    """Reads arguments of a table. One that is missing or None counts as not set and gives -1, None or False."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    def has(self, name: str) -> bool:
        return self._arguments.get(name) is not None

    def number(self, name: str, least: int, most: int = NUMBER_MAX) -> int:
        value = self._arguments.get(name)
        if value is None:
            return -1
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(name, f"expected an integer, got {value!r}")
        if not least <= value <= most:
            raise InvalidArgument(name, f"{value} is not between {least} and {most}")
        return value

    def text(self, name: str) -> str | None:
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(name, f"expected a string, got {value!r}")
        if value is not None and len(value.encode()) > SHORTSTR_MAX:
            raise InvalidArgument(name, f"longer than {SHORTSTR_MAX} bytes")
        return value

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices. The first one is the default."""
        value = self.text(name) or choices[0]
        if value not in choices:
            raise InvalidArgument(name, f"{value!r} is none of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool:
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(name, f"expected a boolean, got {value!r}")
        return bool(value)

    def age(self, name: str) -> int:
        value = self.text(name)
        if value is not None and age_ms(value) < 0:
            units = ", ".join(AGE_UNITS_MS)
            raise InvalidArgument(name, f"expected a number and one of the units {units}, got {value!r}")
        return -1 if value is None else age_ms(value)


def age_ms(text: str) -> int:
    """Return the ms of an interval like `7D` (units Y M D h m s), as stream arguments have it. Returns -1 if it is malformed."""
    found = re.fullmatch(r"([0-9]{1,9})([YMDhms])", text)
    return int(found[1]) * AGE_UNITS_MS[found[2]] if found else -1
