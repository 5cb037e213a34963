"""Finds the file in a body of type multipart/form-data, as browsers and `curl -F` send it. Called by imports.py."""

from __future__ import annotations

import re
from email.message import Message

from kvitto.http.request import bad_request
from kvitto.http.slices import Slices

HEAD_MAX = 8192
"""The maximum number of bytes of the headers of one part."""
LINE_MAX = 1024
"""The maximum number of characters of a header's value. Python's parser takes seconds for one of 64 KiB."""
PARTS_MAX = 16
SEARCHED = 1 << 20
"""Bytes that are searched for a boundary in one step."""
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")


async def file_of(slices: Slices, body: bytearray | bytes, content_type: str) -> tuple[int, int]:
    """Return start and end of the field `file`, or of the only field. Raise Problem 400."""
    boundary = _parameter(content_type, "boundary")
    if boundary is None or not _BOUNDARY.fullmatch(boundary):
        raise bad_request("the content type multipart/form-data has no valid boundary")
    mark = b"--" + boundary.encode()
    if not body.startswith(mark):
        raise bad_request("the body does not begin with the boundary of its content type")
    at = len(mark)
    found: list[tuple[str | None, int, int]] = []
    while body[at : at + 2] != b"--":
        if body[at : at + 2] != b"\r\n" or len(found) >= PARTS_MAX:
            raise bad_request("the body is no multipart/form-data with a few fields")
        blank = body.find(b"\r\n\r\n", at, at + HEAD_MAX)
        if blank < 0:
            raise bad_request("a part of the body has no headers, or too long ones")
        start, end = blank + 4, await _find(slices, body, b"\r\n" + mark, blank + 2)
        found.append((_name(bytes(body[at + 2 : blank])), start, max(end, start)))
        at = end + 2 + len(mark)
        await slices.rest()
    for name, start, end in found:
        if name == "file" or len(found) == 1:
            return start, end
    raise bad_request("the form has no field 'file'")


async def _find(slices: Slices, body: bytearray | bytes, what: bytes, at: int) -> int:
    while at < len(body):
        end = body.find(what, at, at + SEARCHED + len(what))
        if end >= 0:
            return end
        at += SEARCHED
        await slices.rest()
    raise bad_request("the body ends within a field of the form")


def _name(head: bytes) -> str | None:
    """Return the name of a field, from the headers of its part."""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            return _parameter(value, "name")
    return None


def _parameter(header: str, name: str) -> str | None:
    """Return a parameter of a header's value."""
    if len(header) > LINE_MAX:
        return None
    message = Message()
    message["content-type"] = header.strip()
    value = message.get_param(name)
    return value if isinstance(value, str) else None
