"""Checks property lists: can every client read them, and does the broker have to look inside?

The broker stores properties as they were received, so it must refuse bytes that would break a consumer's parser. The
check is one pass, without an object per message when compiled. `Channel` calls it for each publish.
"""

from __future__ import annotations

from kvitto.base.limits import TABLE_DEPTH_MAX
from kvitto.wire import bits

MALFORMED = -1
EXPIRATION = 1
USER_ID = 2
REPLY_TO = 4
"""A bit of the result: reply_to begins with "amq.", so it may be direct reply-to."""
COPIES = 8
"""A bit of the result: the headers have CC or BCC."""

DIRECT_REPLY_TO = b"amq.rabbitmq.reply-to"

_DIRECT_LEN = len(DIRECT_REPLY_TO)
_DEPTH = TABLE_DEPTH_MAX


def check_properties(p, at, n):  # type: ignore[no-untyped-def]
    """Check the flags and the list in p[at:at+n]. Return MALFORMED, or the bits above."""
    if n < 2:
        return MALFORMED
    flags = bits.be16(p, at)
    if flags & 3:
        return MALFORMED
    found = 0
    end = at + n
    i = at + 2
    bit = 0x8000
    while bit > 2:
        if flags & bit:
            if bit == 0x2000:
                if end - i < 4:
                    return MALFORMED
                size = bits.be32(p, i)
                i += 4
                if size > end - i:
                    return MALFORMED
                k = check_table(p, i, i + size, 0)
                if k < 0:
                    return MALFORMED
                found |= k
                i += size
            elif bit == 0x1000 or bit == 0x0800:
                i += 1
            elif bit == 0x0040:
                i += 8
            else:
                if i >= end:
                    return MALFORMED
                size = p[i]
                if bit == 0x0100:
                    found |= EXPIRATION
                elif bit == 0x0010:
                    found |= USER_ID
                elif bit == 0x0200 and size >= _DIRECT_LEN and is_direct(p, i + 1, end):
                    found |= REPLY_TO
                i += 1 + size
            if i > end:
                return MALFORMED
        bit >>= 1
    return found if i == end else MALFORMED


def is_direct(p, i, end):  # type: ignore[no-untyped-def]
    """Return whether "amq.rabbitmq.reply-to" may begin here; the caller checks the whole value."""
    return end - i >= _DIRECT_LEN and p[i] == 97 and p[i + 1] == 109 and p[i + 2] == 113 and p[i + 3] == 46


def check_table(p, i, end, depth):  # type: ignore[no-untyped-def]
    """Check the pairs in p[i:end]. Return MALFORMED, or COPIES if a key on the first level is CC or BCC, else 0."""
    found = 0
    while i < end:
        size = p[i]
        i += 1
        if size >= end - i:
            return MALFORMED
        if depth == 0 and size <= 3 and is_copies(p, i, size):
            found = COPIES
        i = check_value(p, i + size, end, depth)
        if i < 0:
            return MALFORMED
    return found if i == end else MALFORMED


def is_copies(p, i, size):  # type: ignore[no-untyped-def]
    if size == 3:
        return p[i] == 66 and p[i + 1] == 67 and p[i + 2] == 67
    return size == 2 and p[i] == 67 and p[i + 1] == 67


def check_value(p, i, end, depth):  # type: ignore[no-untyped-def]
    """Return the end of the value that begins with its type at p[i], or MALFORMED."""
    if i >= end:
        return MALFORMED
    kind = p[i]
    i += 1
    if kind == 83 or kind == 120 or kind == 70 or kind == 65:  # S x F A
        if end - i < 4:
            return MALFORMED
        size = bits.be32(p, i)
        i += 4
        if size > end - i:
            return MALFORMED
        if kind == 70:
            if depth >= _DEPTH or check_table(p, i, i + size, depth + 1) < 0:
                return MALFORMED
        elif kind == 65 and (depth >= _DEPTH or check_array(p, i, i + size, depth + 1) < 0):
            return MALFORMED
        i += size
    elif kind == 116 or kind == 98 or kind == 66:  # t b B
        i += 1
    elif kind == 115 or kind == 117 or kind == 85:  # s u U
        i += 2
    elif kind == 73 or kind == 105 or kind == 102:  # I i f
        i += 4
    elif kind == 76 or kind == 108 or kind == 100 or kind == 84:  # L l d T
        i += 8
    elif kind == 68:  # D
        i += 5
    elif kind != 86:  # V
        return MALFORMED
    return i if i <= end else MALFORMED


def check_array(p, i, end, depth):  # type: ignore[no-untyped-def]
    while i < end:
        i = check_value(p, i, end, depth)
        if i < 0:
            return MALFORMED
    return 0 if i == end else MALFORMED
