"""A story: actions as plain tuples, which can be kept as text, performed again, and shrunk.

The first element of an action is its kind, a method of `StoryRun`; the others are its arguments. A file has one action
per line, as a Python literal, with a comment that says what the bytes in it are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from kvitto.base.errors import ProtocolError
from kvitto.wire.methods import decode
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PROTOCOL_HEADER

Action = tuple[Any, ...]
Story = list[Action]
TRIES_MAX = 600
"""Shorter stories that are tried before the shortest one so far is taken."""


def text(story: Iterable[Action]) -> str:
    return "".join(line(action) for action in story)


def line(action: Action) -> str:
    said = "; ".join(frames_said(action[3])) if action[0] == "send" else ""
    return repr(action) + (f"  # {said[:400]}" if said else "") + "\n"


def read(lines: str) -> Story:
    """The opposite of `text`."""
    return [action for one in lines.splitlines() if one.strip() and (action := ast.literal_eval(one.strip()))]


def frames_said(data: bytes) -> list[str]:
    """What is in these bytes, for people."""
    said, at = [], 0
    if data.startswith(PROTOCOL_HEADER):
        said.append("protocol header")
        at = len(PROTOCOL_HEADER)
    while at + 8 <= len(data):
        end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        kind, number = data[at], int.from_bytes(data[at + 1 : at + 3], "big")
        if end > len(data):
            break
        said.append(f"{number}: {payload_said(kind, data[at + 7 : end - 1])}")
        at = end
    return said + ([f"{len(data) - at} bytes"] if at < len(data) else [])


def payload_said(kind: int, payload: bytes) -> str:
    if kind == FRAME_METHOD:
        try:
            return repr(decode(payload))
        except ProtocolError as error:
            return str(error)
    if kind == FRAME_HEADER:
        return f"header of {int.from_bytes(payload[4:12], 'big')} bytes, {len(payload) - 12} of properties"
    return f"body {payload[:20]!r}" if kind == FRAME_BODY else f"frame of type {kind}"


def shrunk(story: Story, fails: Callable[[Story], bool]) -> Story:
    """The story without all that it does not need to fail: whole parts first, then single actions, then parts of what is sent."""
    tries = TRIES_MAX
    size = max(len(story) // 2, 1)
    while size and tries > 0:
        at = 0
        while at < len(story) and tries > 0:
            shorter = story[:at] + story[at + size :]
            tries -= 1
            if fails(shorter):
                story = shorter
            else:
                at += size
        size //= 2
    for i in range(len(story)):
        if story[i][0] == "send" and tries > 0:
            story, tries = fewer_frames(story, i, fails, tries)
    return story


def fewer_frames(story: Story, i: int, fails: Callable[[Story], bool], tries: int) -> tuple[Story, int]:
    k = 0
    while tries > 0:
        frames = cut(story[i][3])
        if k >= len(frames) or len(frames) < 2:
            break
        less = (*story[i][:3], b"".join(frames[:k] + frames[k + 1 :]))
        shorter = [*story[:i], less, *story[i + 1 :]]
        tries -= 1
        if fails(shorter):
            story = shorter
        else:
            k += 1
    return story, tries


def cut(data: bytes) -> list[bytes]:
    """Frames; a message's method, header and body are one, and so is what is no frame."""
    found: list[bytes] = []
    at = 0
    while at + 8 <= len(data):
        end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        if end > len(data):
            break
        if data[at] in (FRAME_HEADER, FRAME_BODY) and found:
            found[-1] += data[at:end]
        else:
            found.append(data[at:end])
        at = end
    return [*found, data[at:]] if at < len(data) else found
