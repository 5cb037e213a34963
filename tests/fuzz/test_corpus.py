"""W8: every story of the corpus, in the form of the data plane that is tested; `make fuzz` looks for new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.seeds import seeds
from tests.fuzz.story import setting, tell

CORPUS = sorted(path for path in Path(__file__).with_name("corpus").iterdir())
PARTS = 4
"""So that the tests can be shared out."""


@pytest.mark.parametrize("part", range(PARTS))
def test_stories_of_the_corpus_are_told_without_a_mistake(part: int) -> None:
    """W8: no exception, whole frames, a Close that says why, bounded memory, and the next peer is served."""
    stories = [(f"seed {i}", story) for i, story in enumerate(seeds())]
    stories += [(path.name, path.read_bytes()) for path in CORPUS]
    with setting():
        for name, story in stories[part::PARTS]:
            try:
                tell(story)
            except Exception as error:
                raise AssertionError(f"story {name}: {error!r}") from error


def test_any_bytes_are_a_story() -> None:
    """The fuzzer may change anything."""
    with setting():
        for n in range(40):
            tell(bytes(range(n)) * n)
