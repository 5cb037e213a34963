"""The corpus: the fewest bytes of stories that go all the ways that are known."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from random import Random

from tests.fuzz import build

FOUND = "found-"
"""Stories of mistakes that were made once: they stay whatever they cover."""
STORIES_MAX = 150
BYTES_MAX = 250_000


def main(home: Path, corpus: Path) -> None:
    build.use()
    from tests.fuzz.seeds import seeds
    from tests.fuzz.story import setting
    from tests.fuzz.worker import Worker

    with setting():
        worker = Worker(home, corpus, Random(0))
        files = [p for p in [*corpus.iterdir(), *worker.queue_dir.iterdir()] if not p.name.startswith(FOUND)]
        stories = sorted({*seeds(), *(path.read_bytes() for path in files)}, key=len)
        # the first run of all also fills caches, which is no way of a story's own
        worker.run(stories[0])
        news = [(worker.run(story), story) for story in stories]
    chosen: list[bytes] = []
    for new, story in sorted(news, key=lambda n: -n[0]):
        if new > 1 and len(chosen) < STORIES_MAX and sum(map(len, chosen)) + len(story) <= BYTES_MAX:
            chosen.append(story)
    for path in corpus.iterdir():
        if not path.name.startswith(FOUND):
            path.unlink()
    for story in chosen:
        (corpus / sha256(story).hexdigest()[:16]).write_bytes(story)
    print(f"{len(chosen)} of {len(stories)} stories, {sum(map(len, chosen))} bytes, {worker.coverage.edges()} edges")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
