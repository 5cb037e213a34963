"""The accessors for compiled callers: what they write is what the layouts read, and their two forms have the same numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvitto.format import batch_head, entry, prefix, settlement, slot_sizes
from kvitto.format.entry import EXPIRES, TTL_MAX
from kvitto.format.layouts import BATCH, BATCH_MAGIC, BLOCK, BLOCK_MAGIC, ENTRY, PREFIX, SETTLEMENT
from kvitto.store.batch import Batch
from kvitto.store.settlements import Settlements, block

FOLDER = Path(__file__).resolve().parents[2] / "src" / "kvitto" / "format"
MODULES = [batch_head, entry, prefix, settlement, slot_sizes]
NUMBER = re.compile(r"^    ([A-Z_]+) = (\w+)", re.MULTILINE)
FUNCTION = re.compile(r"^cdef inline [\w ]+?(\w+)\((.*)\) noexcept nogil:$", re.MULTILINE)
U32 = (1 << 32) - 1

messages = st.lists(
    st.tuples(
        st.binary(max_size=40),
        st.binary(max_size=40),
        st.binary(max_size=80),
        st.integers(-1, TTL_MAX),
        st.sampled_from([0, 2, 4]),
    ),
    max_size=8,
)


def known(module: ModuleType) -> dict[str, int]:
    """The numbers that a module, or the layout that it writes, gives to these names."""
    numbers = {f"{name.upper()}_AT": at for name, at in BATCH.at.items()} if module is batch_head else {}
    numbers |= {f"BLOCK_{name.upper()}_AT": at for name, at in BLOCK.at.items()}
    magics = {"MAGIC": BATCH_MAGIC, "BLOCK_MAGIC": BLOCK_MAGIC}
    return numbers | vars(module) | {name: int.from_bytes(magic, "little") for name, magic in magics.items()}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_numbers_of_the_compiled_form_are_those_of_the_layouts(module: ModuleType) -> None:
    text = (FOLDER / f"{module.__name__.rpartition('.')[2]}.pxd").read_text()
    numbers = {name: int(value, 0) for name, value in NUMBER.findall(text)}
    assert numbers
    assert numbers == {name: known(module)[name] for name in numbers}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_functions_of_the_compiled_form_have_a_twin_with_the_same_parameters(module: ModuleType) -> None:
    name = module.__name__.rpartition(".")[2]
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    plain = {each.name: [a.arg for a in each.args.args] for each in tree.body if isinstance(each, ast.FunctionDef)}
    compiled = {
        function: [part.split()[-1] for part in parameters.split(",")]
        for function, parameters in FUNCTION.findall((FOLDER / f"{name}.pxd").read_text())
    }
    assert compiled
    assert compiled == {function: plain[function] for function in compiled}


@given(messages, st.integers(0, U32), st.integers(0, 1 << 40))
def test_a_batch_is_written_as_its_layouts_say(
    contents: list[tuple[bytes, bytes, bytes, int, int]], first: int, time_ms: int
) -> None:
    batch = Batch()
    batch.start(first, time_ms)
    for key, props, body, ttl_ms, flags in contents:
        batch.put(key, props, body, ttl_ms, flags)
    batch.journal = 7
    index, meta, bodies = map(bytes, batch.areas())
    whole = b"".join(map(bytes, batch.seal(9, 5)))
    assert whole.endswith(index + meta + bodies)
    head = whole[: BATCH.size]
    said = BATCH.read(head)
    length = len(head + index + meta + bodies)
    assert said[:2] + said[3:] == (BATCH_MAGIC, length, first, time_ms, len(contents), len(meta), len(bodies), 0, 7, 9)
    for k, (key, props, body, ttl_ms, flags) in enumerate(contents):
        x = ENTRY.read(index, k * ENTRY.size)
        assert meta[x.meta :][: x.key_len + x.props_len] == key + props and x.key_len == len(key)
        assert bodies[x.body :][: x.body_len] == body
        assert x.flags == (flags if ttl_ms < 0 else flags | EXPIRES)
        assert entry.join_ttl(x.flags, x.ttl_high, x.ttl_low) == max(ttl_ms, -1) == batch.ttl_of(k)
        assert entry.split_ttl(ttl_ms, flags) == (x.flags, x.ttl_high, x.ttl_low)
        assert batch.message(k) == (key, props, body, x.flags)


@given(
    st.integers(0, 1 << 60), st.integers(1, 1 << 26), st.sampled_from(list(settlement.OUTCOMES)), st.integers(0, U32)
)
def test_settlements_are_written_as_their_layout_says(offset: int, count: int, outcome: int, deliveries: int) -> None:
    pending = Settlements()
    pending.add(offset, count, outcome, deliveries)
    at = offset
    for k in range(0, pending.entries.n, SETTLEMENT.size):
        said = SETTLEMENT.read(pending.entries.data, k)
        assert (said.offset, said.deliveries) == (at, deliveries)
        assert settlement.outcome_of(said.word) == outcome
        at += settlement.count_of(said.word)
    assert at == offset + count


@given(
    st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(0, U32)), max_size=600),
    st.integers(0, 1 << 45),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 40),
)
def test_a_block_of_settlements_is_written_as_its_layouts_say(
    contents: list[tuple[int, int]], time_ms: int, mark: int, durable: int
) -> None:
    """Blocks of few entries are made in another way than those of many."""
    pending = Settlements()
    for offset, deliveries in contents:
        pending.add(offset, 1, settlement.ACKED, deliveries)
    entries = bytes(pending.entries.view())
    whole = b"".join(map(bytes, block(pending.entries, time_ms, mark, durable)))
    assert whole.endswith(entries) and len(whole) == BLOCK.size + len(entries)
    said = BLOCK.read(whole)
    assert said == (
        BLOCK_MAGIC,
        len(whole),
        xxhash.xxh3_64_intdigest(whole[PREFIX.size :]),
        time_ms,
        mark,
        len(entries) // SETTLEMENT.size,
        min(durable, U32),
    )
