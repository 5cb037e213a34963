"""The declarations of compiled functions: no return value may be taken for an exception."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src"
FUNCTION = re.compile(r"^\s*(?:cdef|cpdef)\s+(?P<type>[^(=]+?)\s*(?P<name>\w+)\((?P<rest>.*)$")
"""A function's declaration; attributes and classes have no parenthesis."""


def unsafe(line: str) -> bool:
    """Whether a function is declared with `except VALUE` although VALUE may be a result.

    With `except? VALUE` and `except *` the caller asks whether there is an exception. A bint is 0 or 1, so its -1 is none of its results.
    """
    found = FUNCTION.match(line)
    clause = re.search(r"\)\s*(?:nogil\s*)?except\s+(?![*])", line)
    return found is not None and clause is not None and found["type"].split()[-1] != "bint"


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.pxd")), ids=lambda path: path.stem)
def test_no_result_of_a_compiled_function_is_taken_for_an_exception(path: Path) -> None:
    wrong = [line.strip() for line in path.read_text().splitlines() if unsafe(line)]
    assert not wrong, (
        "declare these with `except? VALUE`: a result that equals VALUE is taken for an exception otherwise"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    cpdef Py_ssize_t credit(self) except -1", True),
        ("    cdef unsigned long long remember(self, unsigned int slot) except 0", True),
        ("    cpdef Py_ssize_t credit(self) except? -1", False),
        ("    cpdef bint get(self, Consumer c) except -1", False),
        ("    cdef int add(self) except *", False),
        ("    cdef took(self, Consumer c)", False),
    ],
)
def test_the_check_tells_safe_declarations_from_unsafe_ones(line: str, expected: bool) -> None:
    assert unsafe(line) is expected
