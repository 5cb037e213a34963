"""The common part of all method classes: the registry, decoding, comparison and display, and the frame around a
payload.

Any bytes either decode or raise ConnectionError_ (503 for a method that does not exist, 501 for one that does not
parse); `decode` raises nothing else.
"""

import struct
from typing import ClassVar, TypeVar

from kvitto.base.errors import COMMAND_INVALID, FRAME_ERROR, ConnectionError_
from kvitto.wire.tables import PARSE_ERRORS, Malformed, explain

_FRAME_HEAD = struct.Struct(">BHI")
_METHOD_HEAD = struct.Struct(">HH")

METHODS: dict[tuple[int, int], type["Method"]] = {}
"""(class id, method id) -> class."""


class Method:
    """Base of the generated classes. Arguments are attributes; reserved arguments are not stored."""

    __slots__: tuple[str, ...] = ()
    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    NAME: ClassVar[str]
    HAS_CONTENT: ClassVar[bool] = False
    SECRETS: ClassVar[frozenset[str]] = frozenset()
    """The names of arguments that never appear in a log."""

    def encode(self) -> bytes:
        """Return class id, method id and arguments. Raise ValueError or struct.error for a value that does not fit."""
        raise NotImplementedError

    @classmethod
    def parse(cls, data: bytes, at: int) -> tuple["Method", int]:
        """Return the method whose arguments start at `at`, and the position after them."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        shown = (f"{name}={'***' if name in self.SECRETS else repr(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__name__}({', '.join(shown)})"


MethodType = TypeVar("MethodType", bound=type[Method])


def register(method: MethodType) -> MethodType:
    """Class decorator that makes the method known to `decode`."""
    METHODS[method.CLASS_ID, method.METHOD_ID] = method
    return method


def decode(payload: bytes | bytearray | memoryview) -> Method:
    """Return the method in the payload of a method frame. Raise ConnectionError_ 503 if it is unknown, 501 if it is
    malformed (as RabbitMQ)."""
    data = bytes(payload)
    if len(data) < 4:
        raise ConnectionError_(FRAME_ERROR, "method frame shorter than its class and method id", 0, 0)
    ids = _METHOD_HEAD.unpack_from(data, 0)
    method = METHODS.get(ids)
    if method is None:
        raise ConnectionError_(COMMAND_INVALID, f"unknown method {ids[0]}.{ids[1]}", *ids)
    try:
        parsed, end = method.parse(data, 4)
        if end != len(data):
            raise Malformed(f"{len(data) - end} bytes too many")
    except PARSE_ERRORS as error:
        text = f"cannot decode {method.NAME}: {explain(error)}"
        raise ConnectionError_(FRAME_ERROR, text, *ids, limit=getattr(error, "limit", "")) from None
    return parsed


def frame(type: int, channel: int, payload: bytes) -> bytes:
    """Return a complete frame around `payload`."""
    return b"".join((_FRAME_HEAD.pack(type, channel, len(payload)), payload, b"\xce"))
