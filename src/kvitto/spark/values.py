"""What all options have in common: the check of names, and the texts of switches and times."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

from kvitto.spark.errors import OptionError

_UNITS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def refuse_unknown(given: Iterable[str], known: Sequence[str], what: str) -> None:
    """Raise OptionError for a name, in lower case, that is not known; the error names the most similar one."""
    names = {name.lower(): name for name in known}
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {names[near[0]]!r}?" if near else f"known are {', '.join(known)}"
            raise OptionError(f"{what} has no option {name!r}; {hint}")


def flag(option: str, text: str) -> bool:
    """Return the value of an option that is true or false."""
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"option {option} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def seconds(option: str, text: str) -> float:
    """Return the seconds of a time such as 90s or 5m."""
    found = parse_seconds(text)
    if found is None:
        raise OptionError(f"option {option} is a time such as 90s or 5m, not {text!r}")
    return found


def parse_seconds(text: str) -> float | None:
    """Return the seconds of `10s`, `500ms`, `5m`, `1h`, or a number alone. None if it is not a time."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        return None
    return float(match[1]) * _UNITS[match[2]]
