from typing import Any

import pytest

from kvitto.spark.errors import OptionError
from kvitto.spark.options import EARLIEST, LATEST, read_options


def test_defaults() -> None:
    options = read_options({"queue": "orders"})
    assert options.queues == ("orders",)
    assert (options.starting, options.ending) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.vhost == "/"
    assert options.mode == "auto"


def test_names_have_no_case_and_values_are_read() -> None:
    options = read_options(
        {
            "QUEUES": "a, b",
            "StartingOffsets": '{"a": 5, "b": -1}',
            "maxoffsetspertrigger": "1000",
            "failOnDataLoss": "FALSE",
            "reconnectTimeout": "5m",
            "readMode": "Staged",
            "stagingLocation": "file:///var/stage%20d/",
            "maxBytesPerTrigger": "64m",
        }
    )
    assert options.queues == ("a", "b")
    assert options.starting == {"a": 5, "b": -1}
    assert options.max_offsets_per_trigger == 1000
    assert not options.fail_on_data_loss
    assert options.reconnect_timeout_s == 300
    assert (options.mode, options.staging) == ("staged", "/var/stage d")
    assert options.max_bytes_per_trigger == 64 << 20


@pytest.mark.parametrize(
    "text", ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-15T00:13:20+02:00"]
)
def test_a_moment_is_in_milliseconds_or_written_out(text: str) -> None:
    assert read_options({"queue": "q", "startingTimestamp": text}).starting_timestamp == 1_700_000_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue": "q", "maxOffsetPerTriger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"queue": "q", "host": "h"}, "known are uri, queue"),
        ({"queuePattern": "q["}, r"regular expression, and 'q\['"),
        ({"queuePattern": ""}, "empty"),
        ({"queuePattern": "q.*", "queue": "q"}, "one of the options"),
        ({"queuePattern": "q.*", "startingOffsets": '{"q": 1}'}, "earliest or latest with queuePattern"),
        ({"queuePattern": "q.*", "managementUri": "localhost:15672"}, "like http://user"),
        ({"queuePattern": "q.*", "managementUri": "http://u:p/w@h:1"}, "percent-encoded"),
        ({"queue": "q", "group": "g" * 241}, "option group has at most 240 bytes, not 241"),
        ({"queue": "q", "readMode": "fast"}, "auto, range, stream or staged, not 'fast'"),
        ({"queue": "q", "readMode": "staged"}, "needs option stagingLocation"),
        ({"queue": "q", "stagingLocation": "s3://bucket/x"}, "absolute path or file:///"),
        ({"queue": "q", "stagingLocation": "here"}, "absolute path or file:///"),
        ({"queue": "q", "maxBytesPerTrigger": "much"}, "such as 1000000 or 64m"),
        ({"queue": "q", "startingTimestamp": "soon"}, "milliseconds since 1970"),
        ({"queue": "q", "startingTimestamp": "0", "startingOffsets": "latest"}, "leave one out"),
        ({}, "one of the options"),
        ({"queue": "q", "queues": "q"}, "one of the options"),
        ({"queues": "a,,b"}, "empty name"),
        ({"queues": "a,a"}, "twice"),
        ({"queue": "q", "uri": "http://x"}, "amqp://"),
        ({"queue": "q", "startingOffsets": "soon"}, "no JSON"),
        ({"queue": "q", "startingOffsets": '{"p": 1}'}, "exactly the queues"),
        ({"queue": "q", "startingOffsets": '{"q": -3}'}, "no object of offsets"),
        ({"queue": "q", "endingOffsets": "earliest"}, "cannot be 'earliest'"),
        ({"queue": "q", "minPartitions": "0"}, "at least 1"),
        ({"queue": "q", "failOnDataLoss": "yes"}, "true or false"),
        ({"queue": "q", "reconnectTimeout": "soon"}, "such as 90s"),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_do(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_options(given)
