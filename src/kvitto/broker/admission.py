"""What a message says of itself that the broker acts on, checked before it is taken: over AMQP and over HTTP alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvitto.base import limits
from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.arguments import MS_MAX
from kvitto.wire import check

if TYPE_CHECKING:
    from kvitto.broker.auth import User

DIRECT_REPLY_TO = check.DIRECT_REPLY_TO.decode()
EXPIRATION_DIGITS = 64
"""Leading zeros are fine."""


def check_user(user_id: str | None, user: User) -> None:
    """ChannelError 406 if a message claims to be from somebody else; impersonators may."""
    if user_id not in (None, user.name) and "impersonator" not in user.tags:
        text = f"user_id property set to '{user_id}' but authenticated user was '{user.name}'"
        raise ChannelError(PRECONDITION_FAILED, text)


def expiration_ms(text: str | None) -> int:
    """Per-message TTL, -1 without one. ChannelError 406 unless it is the digits of an integer >= 0."""
    if text is None:
        return -1
    if text.isascii() and text.isdigit() and len(text) <= EXPIRATION_DIGITS and int(text) <= MS_MAX:
        return int(text)
    raise ChannelError(PRECONDITION_FAILED, f"invalid expiration '{text}'")


def check_copies(headers: dict[str, Any], most: int) -> None:
    """ChannelError 406 unless CC and BCC are arrays of strings, with at most `most` strings together."""
    count = 0
    for name in ("CC", "BCC"):
        value = headers.get(name, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ChannelError(PRECONDITION_FAILED, f"{name} header must be an array of strings")
        count += len(value)
    if count > most:
        text = f"CC and BCC have {count} routing keys, the limit is {most}"
        raise ChannelError(PRECONDITION_FAILED, text, limit="routing")


def check_size(props: bytes) -> None:
    """ChannelError 406 for properties that no consumer could take, where the broker has not got them in a frame."""
    if len(props) > limits.PROPERTIES_MAX:
        text = f"the properties take {len(props)} bytes, at most {limits.PROPERTIES_MAX} are possible"
        raise ChannelError(PRECONDITION_FAILED, text)
