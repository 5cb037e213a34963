"""Checks the properties of a message that the broker acts on, before it accepts the message. AMQP and HTTP share these checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kvitto.base import limits
from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.administration.arguments import MS_MAX
from kvitto.wire import check
from kvitto.wire.properties import Properties, edit_headers, join, split
from kvitto.wire.tables import encode_shortstr

if TYPE_CHECKING:
    from kvitto.broker.administration.auth import User
    from kvitto.broker.queues.queue import Queue

DIRECT_REPLY_TO = check.DIRECT_REPLY_TO.decode()
EXPIRATION_DIGITS = 64
"""The most digits of an expiration. There may be leading zeros."""


def admit(properties: Properties, user: User | None, copies_max: int) -> int:
    """Return the message's time to live in ms, -1 if it has none. Raises ChannelError 406 if this user, or anybody, may not publish it.

    `copies_max` is the most routing keys that CC and BCC may have together.
    """
    if user is not None and properties.user_id is not None:
        check_user(properties.user_id, user)
    ttl_ms = expiration_ms(properties.expiration)
    headers = properties.headers
    if headers and ("CC" in headers or "BCC" in headers):
        check_copies(headers, copies_max)
    return ttl_ms


def as_consumers_see(props: bytes, headers: Mapping[str, Any], reply_to: str | None = None) -> bytes:
    """Return encoded properties without BCC, and with another reply_to if one is given. `headers` are those of the properties.

    Raises ChannelError 406 if the result is too long.
    """
    if reply_to is None and "BCC" not in headers:
        return props
    fields = split(props)
    if reply_to is not None:
        fields["reply_to"] = encode_shortstr(reply_to)
    if "BCC" in headers:
        edit_headers(fields, {}, ("BCC",))
    props = join(fields)
    check_size(props)
    return props


def as_stored(
    props: bytes, headers: Mapping[str, Any], queues: Collection[Queue], reply_to: str | None = None
) -> bytes:
    """Do the work of `as_consumers_see` for a message that goes to these queues. BCC stays if all of them route it once more."""
    later = len(queues) > 0 and all(queue.routes_later for queue in queues)
    return as_consumers_see(props, {} if later else headers, reply_to)


def check_user(user_id: str, user: User) -> None:
    """Raises ChannelError 406 if a message claims to be from another user, unless this user has the tag impersonator."""
    if user_id != user.name and "impersonator" not in user.tags:
        text = f"user_id property set to '{user_id}' but authenticated user was '{user.name}'"
        raise ChannelError(PRECONDITION_FAILED, text)


def expiration_ms(text: str | None) -> int:
    """Return the time to live of a message in ms, -1 if it has none. Raises ChannelError 406 unless `text` is an integer >= 0 in digits."""
    if text is None:
        return -1
    if text.isascii() and text.isdigit() and len(text) <= EXPIRATION_DIGITS and int(text) <= MS_MAX:
        return int(text)
    raise ChannelError(PRECONDITION_FAILED, f"invalid expiration '{text}'")


def check_copies(headers: Mapping[str, Any], most: int) -> None:
    """Raises ChannelError 406 unless CC and BCC are arrays of strings, with at most `most` strings together."""
    count = 0
    for name in ("CC", "BCC"):
        value = headers.get(name, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ChannelError(PRECONDITION_FAILED, f"{name} header must be an array of strings")
        count += len(value)
    if count > most:
        text = f"CC and BCC have {count} routing keys, the limit is {most}"
        raise ChannelError(PRECONDITION_FAILED, text, limit="routing")


def copy_keys(headers: Mapping[str, Any]) -> list[str]:
    """Return the routing keys of the copies that a message asks for. `check_copies` has accepted the headers."""
    return [*(headers.get("CC") or ()), *(headers.get("BCC") or ())]


def check_size(props: bytes) -> None:
    """Raises ChannelError 406 for properties that are too long for any consumer. Properties that came in a frame need no such check."""
    if len(props) > limits.PROPERTIES_MAX:
        text = f"the properties take {len(props)} bytes, at most {limits.PROPERTIES_MAX} are possible"
        raise ChannelError(PRECONDITION_FAILED, text)
