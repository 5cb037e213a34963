"""Integers in byte buffers, addressed by (buffer, index). `bits.pxd` has the inline C versions; change both together.

Names without `le` are big-endian, the order of AMQP; `le*` is little-endian, the order on disk.
"""

from __future__ import annotations

Bytes = bytes | bytearray | memoryview


def be16(p: Bytes, i: int) -> int:
    return (p[i] << 8) | p[i + 1]


def be32(p: Bytes, i: int) -> int:
    return (p[i] << 24) | (p[i + 1] << 16) | (p[i + 2] << 8) | p[i + 3]


def be64(p: Bytes, i: int) -> int:
    return int.from_bytes(p[i : i + 8], "big")


def put16(p: bytearray, i: int, v: int) -> None:
    p[i] = (v >> 8) & 255
    p[i + 1] = v & 255


def put32(p: bytearray, i: int, v: int) -> None:
    p[i : i + 4] = v.to_bytes(4, "big")


def put64(p: bytearray, i: int, v: int) -> None:
    p[i : i + 8] = v.to_bytes(8, "big")


def le16(p: Bytes, i: int) -> int:
    return p[i] | (p[i + 1] << 8)


def le32(p: Bytes, i: int) -> int:
    return int.from_bytes(p[i : i + 4], "little")


def le64(p: Bytes, i: int) -> int:
    return int.from_bytes(p[i : i + 8], "little")


def put_le16(p: bytearray, i: int, v: int) -> None:
    p[i] = v & 255
    p[i + 1] = (v >> 8) & 255


def put_le32(p: bytearray, i: int, v: int) -> None:
    p[i : i + 4] = v.to_bytes(4, "little")


def put_le64(p: bytearray, i: int, v: int) -> None:
    p[i : i + 8] = v.to_bytes(8, "little")


def copy(dst: bytearray, d: int, src: Bytes, s: int, n: int) -> None:
    dst[d : d + n] = src[s : s + n]


def zeros(n: int) -> bytearray:
    """Return n zeros. In C this does not call the constructor, which takes anything."""
    return bytearray(n)


def piece(p: Bytes, i: int, n: int) -> bytes:
    """Return a copy of n bytes. Of few bytes that costs less than a view."""
    return bytes(p[i : i + n])


def same(a: Bytes, i: int, b: Bytes, j: int, n: int) -> bool:
    return a[i : i + n] == b[j : j + n]
