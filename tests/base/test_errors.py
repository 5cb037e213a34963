"""The errors that become a Close."""

import pytest

from kvitto.base import errors
from kvitto.base.errors import ChannelError, ConnectionError_, ProtocolError


def test_a_protocol_error_carries_what_a_close_needs() -> None:
    error = ChannelError(404, "no queue 'q' in vhost '/'", 50, 10)
    assert isinstance(error, ProtocolError)
    assert (error.code, error.class_id, error.method_id) == (404, 50, 10)
    assert error.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"


def test_the_name_of_the_code_is_not_repeated() -> None:
    assert ConnectionError_(503, "COMMAND_INVALID - unknown method").reply_text == "COMMAND_INVALID - unknown method"


@pytest.mark.parametrize("name", ["\u00e9" * 127, "x" * 255, "\udcff" * 255])
def test_a_reply_text_fits_into_a_short_string(name: str) -> None:
    """Names have up to 255 bytes of their own, and may be no UTF-8."""
    text = ChannelError(404, f"no queue '{name}'").reply_text
    assert text.startswith("NOT_FOUND - no queue '")
    assert 250 <= len(text.encode()) <= 255


@pytest.mark.parametrize("code", sorted(errors.REPLY_NAMES))
def test_every_named_code_has_a_constant(code: int) -> None:
    assert getattr(errors, errors.REPLY_NAMES[code]) == code
