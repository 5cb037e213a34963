"""The options of `format("amqp")`: read once, checked, and then a frozen object that is sent to the executors.

Spark passes options as strings whose names have no case. An unknown option would otherwise show as wrong data much
later, so it is refused, with the most similar name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NoReturn
from urllib.parse import unquote, urlsplit

from kvitto.client.uri import DEFAULT_URI, parse_uri
from kvitto.spark.errors import OptionError
from kvitto.spark.values import flag, refuse_unknown, seconds

EARLIEST: Final = -2
LATEST: Final = -1
"""Positions without a number, as in Spark's Kafka source."""

Bound = int | dict[str, int]
"""The start or the end: EARLIEST or LATEST for all queues, or one offset (or -2, -1) for each."""

KNOWN: Final = (
    "uri",
    "queue",
    "queues",
    "queuePattern",
    "managementUri",
    "readMode",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "stagingLocation",
    "failOnDataLoss",
    "includeHeaders",
    "group",
    "reconnectTimeout",
)
AUTO: Final = "auto"
RANGE: Final = "range"
STREAM: Final = "stream"
STAGED: Final = "staged"
MODES: Final = (AUTO, RANGE, STREAM, STAGED)
NEEDS_STAGING: Final = (
    "needs option stagingLocation: a directory on a disk that is there after a restart, seen by all executors, and this"
    " query's alone"
)
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


GROUP_BYTES: Final = 240
"""The maximum size: a short string of AMQP, less the suffix that each driver adds."""


@dataclass(frozen=True, slots=True)
class Options:
    """All options with their defaults applied. `queues` are those that are read now; with `pattern` "" always these.

    `group` "" means one group for each checkpoint; `min_partitions` 0 means by size. `starting_timestamp` is in seconds
    since 1970, None means by offset. `staging` "" means that no directory is given.
    """

    uri: str
    queues: tuple[str, ...]
    pattern: str
    management: str
    mode: str
    starting: Bound
    starting_timestamp: int | None
    ending: Bound
    max_offsets_per_trigger: int
    max_bytes_per_trigger: int
    min_partitions: int
    fail_on_data_loss: bool
    include_headers: bool
    group: str
    reconnect_timeout_s: float
    staging: str

    @property
    def vhost(self) -> str:
        return parse_uri(self.uri).vhost


def from_the_start(options: Options, queues: tuple[str, ...]) -> Options:
    """Return the options with these queues, read from their start: the start options are for the queues that a new query finds."""
    return replace(options, queues=queues, starting=EARLIEST, starting_timestamp=None)


def read_options(given: Mapping[str, str]) -> Options:
    """Check the options. OptionError says which is wrong and which values it may have."""
    values = {name.lower(): value for name, value in given.items()}
    refuse_unknown(values, KNOWN, "format 'amqp'")
    mode = values.get("readmode", AUTO).strip().lower()
    if mode not in MODES:
        raise OptionError(f"option readMode is auto, range, stream or staged, not {mode!r}")
    uri = values.get("uri", DEFAULT_URI)
    try:
        parse_uri(uri)
    except ValueError as error:
        raise OptionError(f"option uri: {error}") from None
    queues = _queues(values)
    pattern = _pattern(values.get("queuepattern", ""))
    if "startingtimestamp" in values and "startingoffsets" in values:
        raise OptionError("options startingOffsets and startingTimestamp say the same thing twice: leave one out")
    if mode == STAGED and "staginglocation" not in values:
        raise OptionError(f"readMode staged {NEEDS_STAGING}")
    return Options(
        uri=uri,
        queues=queues,
        pattern=pattern,
        management=_management(values.get("managementuri", "")),
        mode=mode,
        starting=_place("startingOffsets", values.get("startingoffsets", "earliest"), queues),
        starting_timestamp=_moment(values.get("startingtimestamp")),
        ending=_place("endingOffsets", values.get("endingoffsets", "latest"), queues),
        max_offsets_per_trigger=_count("maxOffsetsPerTrigger", values.get("maxoffsetspertrigger")),
        max_bytes_per_trigger=_bytes("maxBytesPerTrigger", values.get("maxbytespertrigger")),
        min_partitions=_count("minPartitions", values.get("minpartitions")),
        fail_on_data_loss=flag("failOnDataLoss", values.get("failondataloss", "true")),
        include_headers=flag("includeHeaders", values.get("includeheaders", "false")),
        group=_group(values.get("group", "")),
        reconnect_timeout_s=seconds("reconnectTimeout", values.get("reconnecttimeout", "120s")),
        staging=_directory(values["staginglocation"]) if "staginglocation" in values else "",
    )


def _queues(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names; none with a pattern."""
    if sum(name in values for name in ("queue", "queues", "queuepattern")) != 1:
        raise OptionError(
            "say which queue to read: one of the options queue (one name), queues (names, comma between) and queuePattern"
            " (a regular expression)"
        )
    if "queuepattern" in values:
        if not values["queuepattern"]:
            raise OptionError("option queuePattern is empty, and no queue has an empty name")
        return ()
    names = [values["queue"]] if "queue" in values else [name.strip() for name in values["queues"].split(",")]
    if not all(names):
        raise OptionError("option queue or queues has an empty name")
    if len(set(names)) != len(names):
        raise OptionError("option queues names a queue twice")
    return tuple(names)


def _group(text: str) -> str:
    if len(text.encode()) > GROUP_BYTES:
        raise OptionError(f"option group has at most {GROUP_BYTES} bytes, not {len(text.encode())}")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"option queuePattern is a regular expression, and {text!r} is none: {error}") from None
    return text


def _management(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = not text or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        good = False
    if not good:  # not the given text: it may contain a password
        raise OptionError(
            "option managementUri is like http://user:password@host:15672, with / ? # [ ] @ percent-encoded"
        )
    return text


def _place(option: str, text: str, queues: tuple[str, ...]) -> Bound:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        if option == "endingOffsets" and word == "earliest":
            raise OptionError("option endingOffsets cannot be 'earliest'; say latest, or offsets as JSON")
        return EARLIEST if word == "earliest" else LATEST
    if not queues:
        raise OptionError(f"option {option} is earliest or latest with queuePattern; for offsets name the queues")

    def wrong(why: str) -> NoReturn:
        form = json.dumps(dict.fromkeys(queues, 0))
        raise OptionError(
            f"option {option}: {why}; it is earliest, latest, or JSON with an offset per queue, as {form}"
        )

    try:
        places = json.loads(text)
    except ValueError:
        wrong(f"{text!r} is no JSON")
    if not isinstance(places, dict) or not all(type(n) is int and n >= EARLIEST for n in places.values()):
        wrong(f"{text!r} is no object of offsets (-2 = earliest, -1 = latest)")
    if set(places) != set(queues):
        wrong(f"{text!r} does not name exactly the queues that are read")
    return places


def _count(option: str, text: str | None) -> int:
    """Return a number of at least 1; 0 if the option is not given."""
    if text is None:
        return 0
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"option {option} is a number of at least 1, not {text!r}")
    return int(text)


def _bytes(option: str, text: str | None) -> int:
    """Return a size of at least 1, such as 64m; 0 if the option is not given."""
    if text is None:
        return 0
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SIZES or int(match[1]) < 1:
        raise OptionError(f"option {option} is a size such as 1000000 or 64m, not {text!r}")
    return int(match[1]) * _SIZES[match[2]]


def _moment(text: str | None) -> int | None:
    """Return seconds, rounded down, of milliseconds since 1970 as in Spark's Kafka source, or of ISO 8601."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text) // 1000
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"option startingTimestamp is in milliseconds since 1970 or as 2026-05-31T12:00:00Z, not {text!r}"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _directory(text: str) -> str:
    """Return the path of a file:// URI or a plain absolute path."""
    parts = urlsplit(text)
    path = unquote(parts.path) if parts.scheme == "file" else text
    if parts.scheme not in ("", "file") or parts.netloc or not path.startswith("/"):
        raise OptionError(
            f"option stagingLocation is an absolute path or file:///..., not {text!r}; a remote one has to be mounted"
        )
    return path.rstrip("/") or "/"
