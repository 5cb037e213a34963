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


@pytest.mark.parametrize("code", sorted(errors.REPLY_NAMES))
def test_every_named_code_has_a_constant(code: int) -> None:
    assert getattr(errors, errors.REPLY_NAMES[code]) == code
