"""Reads the fields of one item of a document of definitions. Each function returns a value of the right type, or raises Refused."""

from __future__ import annotations

from typing import Any

from kvitto.base.errors import ConnectionError_
from kvitto.base.limits import NAME_MAX, SHORTSTR_MAX
from kvitto.wire import tables


class Refused(ValueError):
    """An item cannot be taken. The text says why, as a part of a sentence for people."""


class Fields:
    """The fields of an item. `value` is what the JSON said; everything else than an object is refused."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise Refused(f"it must be an object, not {kind_of(value)}")
        self._value: dict[str, Any] = value

    def whole(self) -> dict[str, Any]:
        return self._value

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    def any(self, name: str) -> Any:
        """Return a value of any type. It must be there."""
        if name not in self._value:
            raise Refused(f"{name} is missing")
        return self._value[name]

    def text(self, name: str, default: str | None = None, most: int = SHORTSTR_MAX) -> str:
        value = self._value.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise Refused(f"{name} must be a string, not {kind_of(value)}" if self.has(name) else f"{name} is missing")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise Refused(f"{name} is not UTF-8") from None
        if size > most:
            raise Refused(f"{name} has {size} bytes, at most {most} are possible")
        return value

    def name(self, field: str = "name") -> str:
        """Return the name of an object, which cannot be empty."""
        value = self.text(field, most=NAME_MAX)
        if not value:
            raise Refused(f"{field} is empty")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value.get(name, default)
        if value in ("true", "false"):
            return bool(value == "true")
        if value is None:
            return default
        if not isinstance(value, bool):
            raise Refused(f"{name} must be true or false, not {kind_of(value)}")
        return value

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices. The first one is the default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise Refused(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def names(self, name: str, parts_max: int = 1000) -> tuple[str, ...]:
        """Return a list of strings, which older versions of RabbitMQ write as one string with commas."""
        given = self._value.get(name)
        parts = given.split(",", parts_max) if isinstance(given, str) else [] if given is None else given
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise Refused(f"{name} must be a list of strings, or one string with commas")
        if len(parts) > parts_max:
            raise Refused(f"{name} has more than {parts_max} parts")
        stripped = [part.strip() for part in parts]
        for part in stripped:
            Fields({name: part}).text(name)
        return tuple(part for part in stripped if part)

    def object(self, name: str) -> dict[str, Any]:
        """Return an object; one that is missing, or an empty list as Erlang's JSON writes it, is empty."""
        value = self._value.get(name)
        if value in (None, "", []):
            return {}
        if not isinstance(value, dict):
            raise Refused(f"{name} must be an object, not {kind_of(value)}")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """Return arguments, as AMQP can carry them."""
        value = {key: _argument(inner) for key, inner in self.object(name).items()}
        try:
            encoded = tables.encode(value)
            if len(encoded) > tables.BYTES_MAX:
                raise Refused(f"{name} takes {len(encoded)} bytes, at most {tables.BYTES_MAX} are possible")
            tables.decode(encoded)  # a table that the next start could not read must not be stored
        except Refused:
            raise
        except UnicodeEncodeError:
            raise Refused(f"{name} is not UTF-8") from None
        except (ValueError, RecursionError, ConnectionError_) as error:
            raise Refused(f"{name}: {error.text if isinstance(error, ConnectionError_) else error}") from None
        return value


def _argument(value: Any) -> Any:
    """Return a value of an argument. Kvitto exports bytes that are no text with surrogates in their place: they are bytes again."""
    match value:
        case str() if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return value.encode("utf-8", "surrogateescape") if _is_escaped(value) else value
        case dict():
            return {key: _argument(inner) for key, inner in value.items()}
        case list():
            return [_argument(inner) for inner in value]
    return value


def _is_escaped(value: str) -> bool:
    return all("\udc80" <= c <= "\udcff" for c in value if "\ud800" <= c <= "\udfff")


def kind_of(value: Any) -> str:
    """Return the name of a JSON type for people."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"
