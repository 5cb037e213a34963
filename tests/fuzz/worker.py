"""The process that is fuzzed: it runs stories until its time is over, or until one kills it."""

from __future__ import annotations

import ctypes
import json
import mmap
import resource
import signal
import time
import traceback
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from random import Random

from tests.fuzz import build

STORY_S = 5.0
"""CPU that a story may take, sanitized and traced; what takes more is a hang, and ends the process with SIGPROF."""
REPORT_S = 60.0
CURRENT_BYTES = 1 << 20


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Coverage:
    """The map of coverage.c."""

    def __init__(self) -> None:
        self.library = ctypes.PyDLL(str(build.COVERAGE))

    def watch(self, on: bool) -> None:
        if on:
            self.library.coverage_reset()
        self.library.coverage_trace_python(int(on))

    def news(self) -> int:
        """How much of the last story was new: 0, 1 (only how often), or more."""
        return int(self.library.coverage_news())

    def edges(self) -> int:
        return int(self.library.coverage_edges())


class Worker:
    def __init__(self, home: Path, corpus: Path, rng: Random) -> None:
        from tests.fuzz.story import tell

        self.tell = tell
        self.home = home
        self.corpus = corpus
        self.queue_dir = home / "queue"
        self.crashes_dir = home / "crashes"
        for directory in (self.queue_dir, self.crashes_dir):
            directory.mkdir(parents=True, exist_ok=True)
        self.rng = rng
        self.coverage = Coverage()
        self.queue: list[bytes] = []
        self.executions = 0
        self.state = json.loads((home / "state.json").read_text())
        with (home / "current").open("wb+") as file:
            file.truncate(CURRENT_BYTES)
            self.current = mmap.mmap(file.fileno(), CURRENT_BYTES)

    def run(self, story: bytes) -> int:
        """Run it where a death leaves it in `current`; how much was new. A mistake that does not kill is kept like one that does."""
        self.current[4 : 4 + len(story)] = story
        self.current[:4] = len(story).to_bytes(4, "big")
        self.executions += 1
        signal.setitimer(signal.ITIMER_PROF, STORY_S)
        try:
            self.tell(story, self.coverage.watch)
        except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
            self.keep_crash(story, error)
            return 0
        return self.coverage.news()

    def keep_crash(self, story: bytes, error: Exception) -> None:
        """One file per place where it was raised."""
        places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        name = sha256(repr((type(error), places[-3:])).encode()).hexdigest()[:12]
        path = self.crashes_dir / name
        if not path.exists():
            self.state["crashes"] += 1
            path.write_bytes(story)
            path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))
            print(f"CRASH {path}: {error!r}", flush=True)

    def load(self) -> None:
        from tests.fuzz.seeds import seeds

        files = sorted(self.corpus.iterdir()) + sorted(self.queue_dir.iterdir())
        for story in [*seeds(), *(path.read_bytes() for path in files)]:
            if self.run(story):
                self.queue.append(story)

    def fuzz(self, until: float) -> None:
        from tests.fuzz.mutate import mutated

        rng, report = self.rng, time.monotonic() + REPORT_S
        self.report()
        while (now := time.monotonic()) < until:
            found = self.queue[-50:] if rng.random() < 0.3 else self.queue  # what was found last has been tried least
            parent = min(rng.choice(found), rng.choice(found), key=len)  # small ones are tried sooner
            story = mutated(rng, parent, self.queue)
            if self.run(story):
                self.queue.append(story)
                (self.queue_dir / sha256(story).hexdigest()[:16]).write_bytes(story)
            if now > report:
                report = now + REPORT_S
                self.report()
        self.report()

    def report(self) -> None:
        """A line for people, and what the next process goes on from."""
        now = {
            **self.state,
            "cpu_s": self.state["cpu_s"] + cpu_s(),
            "executions": self.state["executions"] + self.executions,
            "edges": self.coverage.edges(),
            "queue": len(self.queue),
        }
        (self.home / "now.json").write_text(json.dumps(now))
        text = "{:%H:%M:%S}  {cpu_s:7.0f} CPU s  {executions:9} executions  {edges:6} edges  {queue:5} stories"
        text += "  {crashes} crashes  {hangs} hangs"
        print(text.format(datetime.now().astimezone(), **now), flush=True)


def main(home: Path, corpus: Path, seed: int, seconds: float) -> None:
    build.use()
    until = time.monotonic() + seconds
    from tests.fuzz.story import setting

    with setting():
        worker = Worker(home, corpus, Random(seed))
        worker.load()
        worker.fuzz(until)
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
