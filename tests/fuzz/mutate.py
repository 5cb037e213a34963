"""New stories from old ones: frames added, lost, moved and changed with their sizes kept right, and bytes changed without care."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from random import Random
from typing import Any

from kvitto.wire.codec import METHODS, Method
from kvitto.wire.methods import frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PROTOCOL_HEADER
from tests.fuzz.story import FEED, KINDS, PIECES, SETTLE, TURN, Step, pack, unpack
from tests.protocol import sessions

STORY_MAX = 1 << 14
HEAD, OVERHEAD = 7, 8
CHANNELS = [0, 1, 1, 1, 1, 2, 2, 3, 8, 9, 65535]
NUMBERS = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 27,
    (1 << 27) + 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 63,
]
NUMBERS += [(1 << 64) - 1]
WORDS = [
    b"x-death",
    b"x-delivery-count",
    b"x-match",
    b"x-stream-offset",
    b"x-max-length",
    b"x-message-ttl",
    b"x-expires",
    b"x-max-priority",
    b"x-dead-letter-exchange",
    b"x-dead-letter-routing-key",
    b"x-overflow",
    b"reject-publish",
    b"x-single-active-consumer",
    b"x-delivery-limit",
    b"x-consumer-timeout",
    b"x-retry-delay-min",
    b"x-retry-delay-max",
    b"x-archive",
    b"x-queue-type",
    b"stream",
    b"alternate-exchange",
    b"amq.rabbitmq.reply-to",
    b"amq.topic",
    b"CC",
    b"BCC",
    b"guest",
    b"#.*.#",
    b"F\0\0\0\0",
    b"A\0\0\0\0",
    b"S\0\0\0\1a",
    b"\xff\xfe",
    b"\0\0\0\0\0\0\0\1",
]
MORE_ARGUMENTS: list[dict[str, Any]] = [
    *sessions.ARGUMENTS,
    {"x-retry-delay-min": 1, "x-retry-delay-max": 1000, "x-dead-letter-exchange": "amq.fanout"},
    {"x-single-active-consumer": True},
    {"x-consumer-timeout": 1},
    {"x-archive": True},
    {"x-max-priority": 3, "x-message-ttl": 1, "x-dead-letter-exchange": "amq.topic"},
    {"x-delivery-limit": 1, "x-max-length": 2},
]
TEXTS = [*sessions.NAMES, "#", "a.*.#", "c", "w", "0"]


def mutated(rng: Random, story: bytes, others: Sequence[bytes]) -> bytes:
    """A story like `story`, changed in one or several places, perhaps with parts of another one."""
    steps = unpack(story)
    for _ in range(1 << rng.choice((0, 0, 0, 1, 1, 2, 3))):
        steps = rng.choice(CHANGES)(rng, steps, others) or steps
    data = pack(steps)
    if rng.random() < 0.05:
        data = havoc(rng, data)
    return data if len(data) <= STORY_MAX else story


# -- steps ---------------------------------------------------------------------------------------------------


def add_step(rng: Random, steps: list[Step], _others: Sequence[bytes]) -> list[Step]:
    at = rng.randint(0, len(steps))
    kind = rng.choice((TURN, SETTLE, SETTLE, *range(KINDS)))
    data = b"".join(some_frame(rng) for _ in range(rng.randint(1, 3))) if kind in (FEED, PIECES) else b""
    return [*steps[:at], Step(kind, rng.randrange(256), data), *steps[at:]]


def lose_step(rng: Random, steps: list[Step], _others: Sequence[bytes]) -> list[Step]:
    if not steps:
        return steps
    at = rng.randrange(len(steps))
    return steps[:at] + steps[at + rng.choice((1, 1, 1, 2, 5)) :]


def repeat_step(rng: Random, steps: list[Step], _others: Sequence[bytes]) -> list[Step]:
    if not steps:
        return steps
    at = rng.randrange(len(steps))
    end = min(at + rng.choice((1, 1, 2, 3)), len(steps))
    return steps[:end] + steps[at:end] * rng.choice((1, 1, 2, 10)) + steps[end:]


def change_step(rng: Random, steps: list[Step], _others: Sequence[bytes]) -> list[Step]:
    if not steps:
        return steps
    at = rng.randrange(len(steps))
    step = steps[at]
    match rng.randrange(3):
        case 0:
            step = step._replace(argument=step.argument ^ 1 << rng.randrange(8))
        case 1 if step.data:
            step = step._replace(kind=PIECES if step.kind == FEED else FEED)
        case _:
            step = step._replace(kind=step.kind if step.data else rng.choice(range(TURN, KINDS)))
    return [*steps[:at], step, *steps[at + 1 :]]


def cut_step(rng: Random, steps: list[Step], _others: Sequence[bytes]) -> list[Step]:
    """One sends half of something, then other things happen."""
    at = sending(rng, steps)
    if at < 0:
        return steps
    step = steps[at]
    cut = rng.randint(0, len(step.data))
    between = Step(rng.choice((TURN, SETTLE, *range(TURN, KINDS))), rng.randrange(256))
    halves = step._replace(data=step.data[:cut]), between, step._replace(data=step.data[cut:])
    return [*steps[:at], *halves, *steps[at + 1 :]]


def cross(rng: Random, steps: list[Step], others: Sequence[bytes]) -> list[Step]:
    """The beginning of one story and the end of another."""
    other = unpack(rng.choice(others))
    return steps[: rng.randint(0, len(steps))] + other[rng.randint(0, len(other)) :]


def sending(rng: Random, steps: list[Step]) -> int:
    """Index of a step that sends something, mostly a late one: the first are the handshake."""
    found = [i for i, step in enumerate(steps) if step.data and step.kind in (FEED, PIECES)]
    if not found:
        return -1
    return max(rng.choice(found), rng.choice(found)) if rng.random() < 0.7 else rng.choice(found)


# -- frames --------------------------------------------------------------------------------------------------


def frames_of(data: bytes) -> list[bytes]:
    """Protocol header and frames; what is no whole frame comes last, in one piece."""
    found, at = [], 0
    if data.startswith(PROTOCOL_HEADER):
        found.append(PROTOCOL_HEADER)
        at = len(PROTOCOL_HEADER)
    while at + OVERHEAD <= len(data):
        end = at + OVERHEAD + int.from_bytes(data[at + 3 : at + HEAD], "big")
        if end > len(data):
            break
        found.append(data[at:end])
        at = end
    return [*found, data[at:]] if at < len(data) else found


def change_frames(rng: Random, steps: list[Step], others: Sequence[bytes]) -> list[Step]:
    at = sending(rng, steps)
    if at < 0:
        return steps
    frames = frames_of(steps[at].data)
    i = max(rng.randrange(len(frames)), rng.randrange(len(frames)))
    match rng.randrange(10):
        case 0 | 1:
            frames[i:i] = [some_frame(rng) for _ in range(rng.choice((1, 1, 2, 4)))]
        case 2:
            frames.append(some_frame(rng))
        case 3:
            del frames[i : i + rng.choice((1, 1, 3))]
        case 4:
            frames[i:i] = [frames[i]] * rng.choice((1, 1, 2, 8, 40))
        case 5:
            j = rng.randrange(len(frames))
            frames[i], frames[j] = frames[j], frames[i]
        case 6:
            taken = [f for step in unpack(rng.choice(others)) for f in frames_of(step.data)]
            if taken:
                start = rng.randrange(len(taken))
                frames[i:i] = taken[start : start + rng.choice((1, 2, 5))]
        case 7 if len(frames[i]) > OVERHEAD:
            number = rng.choice(CHANNELS).to_bytes(2, "big")
            frames[i] = frames[i][:1] + number + frames[i][3:]
        case _:
            frames[i] = changed_payload(rng, frames[i])
    return [*steps[:at], steps[at]._replace(data=b"".join(frames)), *steps[at + 1 :]]


def changed_payload(rng: Random, data: bytes) -> bytes:
    """Something else in the frame, and its size right."""
    if len(data) < OVERHEAD:
        return havoc(rng, data)
    payload = havoc(rng, data[HEAD:-1])
    return data[:3] + len(payload).to_bytes(4, "big") + payload + data[-1:]


def change_bytes(rng: Random, steps: list[Step], _others: Sequence[bytes]) -> list[Step]:
    at = sending(rng, steps)
    if at < 0:
        return steps
    return [*steps[:at], steps[at]._replace(data=havoc(rng, steps[at].data)), *steps[at + 1 :]]


def havoc(rng: Random, data: bytes) -> bytes:
    """A few changes without care for what the bytes mean."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randint(0, len(data))
        match rng.randrange(7):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at] + rng.randbytes(1) + data[at + 1 :]
            case 2:
                size = rng.choice((1, 2, 4, 8))
                number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 1))) % (1 << 8 * size)
                data = data[:at] + number.to_bytes(size, "big") + data[at + size :]
            case 3:
                data = data[:at] + data[at + rng.choice((1, 1, 2, 4, 16, 100)) :]
            case 4:
                end = at + rng.choice((1, 2, 8, 32))
                data = data[:end] + data[at:end] * rng.choice((1, 2, 20)) + data[end:]
            case 5:
                data = data[:at] + rng.choice(WORDS) + data[at:]
            case _:
                word = rng.choice(WORDS)
                data = data[:at] + word + data[at + len(word) :]
    return data


# -- frames from nothing -------------------------------------------------------------------------------------


def some_frame(rng: Random) -> bytes:
    """One frame as a peer may send it, or a whole message."""
    return made_frame(rng).replace(sessions.NOT_UTF8.encode(), b"\xff\xfe")


def made_frame(rng: Random) -> bytes:
    channel = rng.choice(CHANNELS)
    match rng.randrange(10):
        case 0 | 1 | 2:
            body = rng.randbytes(rng.choice((0, 1, 5, 40, 300, 5000)))
            method = some_method(rng, sessions.m.BasicPublish)
            return sessions.content(channel, method, some_properties(rng), body, rng.choice((131072, 18, 200)))
        case 3:
            size = rng.choice((0, 1, 5, 1 << 20, 1 << 27, (1 << 27) + 1))
            return frame(FRAME_HEADER, channel, b"\0\x3c\0\0" + size.to_bytes(8, "big") + some_properties(rng))
        case 4:
            return frame(FRAME_BODY, channel, rng.randbytes(rng.choice((0, 1, 5, 100))))
    kind = METHODS[rng.choice(sorted(METHODS))]
    return frame(FRAME_METHOD, channel, some_method(rng, kind).encode())


def some_method(rng: Random, kind: type[Method]) -> Method:
    values: dict[str, Any] = {}
    for parameter in inspect.signature(kind).parameters.values():
        match parameter.annotation.__name__ if isinstance(parameter.annotation, type) else "":
            case "bool":
                value: Any = rng.random() < 0.3
            case "int":
                value = rng.randint(0, 6)
            case "str":
                value = rng.choice(sessions.TYPES if parameter.name == "type" else TEXTS)
            case "bytes":
                value = rng.choice((b"", b"0", b"0\n1", rng.randbytes(5)))
            case _:
                value = rng.choice(MORE_ARGUMENTS)
        values[parameter.name] = value
    return kind(**values)


def some_properties(rng: Random) -> bytes:
    if rng.random() < 0.4:
        return sessions.NO_PROPERTIES
    if rng.random() < 0.2:
        return Properties(headers=rng.choice(MORE_ARGUMENTS)).encode()
    return rng.choice(sessions.PROPERTIES).encode()


CHANGES = (
    add_step,
    lose_step,
    repeat_step,
    change_step,
    cut_step,
    cross,
    change_bytes,
    *[change_frames] * 8,
)
