"""The kombu transport `kvitto://` (and `kvittos://` over TLS): Celery on the compiled codec of Kvitto's client.

kombu looks transports up in a table of its own, and has no entry points for them. It does load its entry points for
serializers as soon as anything serializes, so Kvitto has one of them (pyproject.toml), whose import adds the transport
to the table. Whoever uses kombu alone and connects before that imports this module, or passes `transport=Transport`.
It imports nothing else until a connection is made, because every process that uses kombu imports it.
"""

from typing import TYPE_CHECKING, Any

from kombu.transport import TRANSPORT_ALIASES

if TYPE_CHECKING:
    from kvitto.kombu.transport import SSLTransport, Transport

__all__ = ["SSLTransport", "Transport"]

TRANSPORT_ALIASES.setdefault("kvitto", "kvitto.kombu.transport:Transport")
TRANSPORT_ALIASES.setdefault("kvittos", "kvitto.kombu.transport:SSLTransport")

NO_SERIALIZER = (None, None, "application/x-kvitto")
"""What the entry point gives to kombu's `register`: neither an encoder nor a decoder, and a type that nobody sends."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        from kvitto.kombu import transport

        return getattr(transport, name)
    raise AttributeError(f"module 'kvitto.kombu' has no attribute {name!r}")
