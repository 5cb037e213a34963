"""The options of `df.write.format("amqp")` and `df.writeStream.format("amqp")`, checked like those of the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvitto.base import limits
from kvitto.client.uri import DEFAULT_URI, parse_uri
from kvitto.spark.errors import OptionError
from kvitto.spark.values import flag, refuse_unknown, seconds

KNOWN: Final = ("uri", "exchange", "routingKey", "value", "mandatory", "writerId", "batchId", "reconnectTimeout")
OF_SPARK: Final = {"checkpointlocation", "queryname"}
"""Spark's own options, which it passes to every streaming sink."""
BATCH_DIGITS_MAX: Final = 18
WRITER_BYTES_MAX: Final = 120
"""The maximum size; the rest of a message_id is for batch, partition and row."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options with their defaults applied. `exchange` and `routing_key` are for rows that do not name their own."""

    uri: str
    exchange: str
    routing_key: str | None
    json: bool
    mandatory: bool
    writer_id: str
    batch_id: int | None
    reconnect_timeout_s: float


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options. OptionError says which is wrong and which values it may have."""
    values = {name.lower(): value for name, value in given.items() if name.lower() not in OF_SPARK}
    _refuse_unknown(values)
    uri = values.get("uri", DEFAULT_URI)
    try:
        parse_uri(uri)
    except ValueError as error:
        raise OptionError(f"option uri: {error}") from None
    value = values.get("value", "body").strip().lower()
    if value not in ("body", "json"):
        raise OptionError(
            f"option value is {value!r}; say json to make the body of all other columns, or leave it out to send column body"
        )
    for option in ("exchange", "routingKey"):
        if len(values.get(option.lower(), "").encode()) > limits.SHORTSTR_MAX:
            raise OptionError(f"option {option} is longer than {limits.SHORTSTR_MAX} bytes, AMQP's limit")
    writer = values.get("writerid", "")
    if len(writer.encode()) > WRITER_BYTES_MAX or "\n" in writer:
        raise OptionError(f"option writerId is one line of at most {WRITER_BYTES_MAX} bytes")
    return SinkOptions(
        uri=uri,
        exchange=values.get("exchange", ""),
        routing_key=values.get("routingkey"),
        json=value == "json",
        mandatory=flag("mandatory", values.get("mandatory", "true")),
        writer_id=writer,
        batch_id=_batch(values.get("batchid"), writer),
        reconnect_timeout_s=seconds("reconnectTimeout", values.get("reconnecttimeout", "120s")),
    )


def _batch(text: str | None, writer: str) -> int | None:
    if text is None:
        return None
    if not writer:
        raise OptionError("option batchId counts the batches of a writer: give option writerId too")
    if not (text.isascii() and text.isdigit() and len(text) <= BATCH_DIGITS_MAX):
        raise OptionError(f"option batchId is {text!r}; it is a number from 0 on, of {BATCH_DIGITS_MAX} digits at most")
    return int(text)


def _refuse_unknown(values: Mapping[str, str]) -> None:
    for name in values:
        if name == "path":
            raise OptionError("format 'amqp' has no path: call save() or start() without one; see option routingKey")
        refuse_unknown([name], KNOWN, "the sink of format 'amqp'")
