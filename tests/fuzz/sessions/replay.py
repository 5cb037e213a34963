"""Perform one story, with the traceback of what it ends in."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzz import build


def main(checkout: Path, file: Path) -> None:
    build.use(checkout)
    from tests.fuzz.sessions.story import read
    from tests.fuzz.sessions.world import run

    (_, seed), *story = read(file.read_text())
    run(story, seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
