"""Arguments that several jobs have, and their types for argparse."""

from __future__ import annotations

import argparse

from kvitto.client import parse_uri
from kvitto.client.uri import DEFAULT_URI
from kvitto.spark.values import parse_seconds


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add --uri and --master."""
    parser.add_argument("--uri", type=uri, default=DEFAULT_URI, help="the broker (default: %(default)s)")
    parser.add_argument("--master", default="local[*]", help="Spark master (default: %(default)s)")


def uri(text: str) -> str:
    """Return an AMQP URI after checking it."""
    try:
        parse_uri(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def seconds(text: str) -> float:
    """Return the seconds of `10s`, `500ms`, `5m`, `1h`, or a number alone."""
    found = parse_seconds(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a time such as 500ms, 10s or 5m, not {text!r}")
    return found


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of at least 1, not {text!r}")
    return int(text)
