"""Any method with any arguments, frames that do not belong, and bytes that are none."""

from __future__ import annotations

from kvitto.wire.codec import METHODS
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT
from tests.fuzz.mutate import havoc
from tests.fuzz.sessions.grammar.base import Grammar, encoded
from tests.fuzz.sessions.story import Action


def any_method(g: Grammar) -> list[Action]:
    client = g.client()
    if client is None:
        return []
    number = g.one(0, 1, 1, 1, 2, 2, 3)
    data = b"".join(encoded(number, g.some(METHODS[g.rng.choice(sorted(METHODS))])) for _ in range(g.one(1, 1, 3)))
    return g.send(client, data)


def any_frame(g: Grammar) -> list[Action]:
    client = g.client()
    if client is None:
        return []
    number = g.one(0, 1, 2, 65535)
    size = g.one(0, 1, 5, 1 << 20, (1 << 27) + 1, (1 << 64) - 1)
    return g.send(
        client,
        g.one(
            frame(
                FRAME_HEADER,
                number,
                b"\0\x3c\0\0" + size.to_bytes(8, "big") + g.one(b"\0\0", b"\xff\xff", b"\x20\0\0\0\0\5"),
            ),
            frame(FRAME_BODY, number, g.rng.randbytes(g.one(0, 1, 100))),
            frame(FRAME_HEARTBEAT, g.one(0, 0, 0, 1), b""),
        ),
    )


def changed(g: Grammar) -> list[Action]:
    """A message with a few bytes changed."""
    found = g.channel()
    if found is None:
        return []
    client, channel = found
    return g.send(client, havoc(g.rng, g.message(client, channel.number, "", g.queue(), headers={"k": 1})))


THEME = [(2, any_method), (1, any_frame), (1, changed)]
