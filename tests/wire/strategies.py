"""Generated input for the codec's tests."""

from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import strategies as st

from kvitto.wire.tables import Table, Timestamp, Value


def shortstrs() -> st.SearchStrategy[str]:
    """Text of at most 255 bytes of UTF-8."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def scalars() -> st.SearchStrategy[Value]:
    """Values that come back from a table exactly as they went in."""
    seconds = st.integers(0, 253402300799)
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
        st.binary(max_size=300),
        seconds.map(lambda s: datetime.fromtimestamp(s, UTC)),
        st.integers(253402300800, 2**64 - 1).map(Timestamp),
        st.integers(-(2**31), 2**31 - 1).flatmap(
            lambda n: st.integers(0, 255).map(lambda scale: Decimal(n).scaleb(-scale))
        ),
    )


def tables() -> st.SearchStrategy[Table]:
    """Nested tables, well inside the depth limit."""
    values: st.SearchStrategy[Value] = st.recursive(
        scalars(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(shortstrs(), inner, max_size=4),
        max_leaves=10,
    )
    return st.dictionaries(shortstrs(), values, max_size=5)


def any_bytes() -> st.SearchStrategy[bytes]:
    """Any bytes, with a taste for those that reach deep: short lengths, type letters."""
    piece = st.sampled_from([b"\0", b"\0\0\0", b"\0\0\0\x05", b"F", b"A", b"S", b"\x01a", b"T", b"D", b"\xff", b"\xc3"])
    return st.binary(max_size=200) | st.lists(piece | st.binary(max_size=3), max_size=30).map(b"".join)
