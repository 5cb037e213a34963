"""Run one story in the sanitized build: `python -m tests.fuzz.replay FILE`, in the environment of `build.environment`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzz import build


def main(path: str) -> None:
    build.use()
    from tests.fuzz.story import setting, tell

    with setting():
        tell(Path(path).read_bytes())


if __name__ == "__main__":
    main(sys.argv[1])
