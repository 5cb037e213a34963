"""The process that tells stories: from one seed to the next until its time is over, or until a story kills it."""

from __future__ import annotations

import json
import mmap
import signal
import sys
import time
import traceback
from hashlib import sha256
from pathlib import Path

from tests.fuzz import build

STORY_S = 20.0
"""CPU that a story may take, sanitized; what takes more is a hang, and ends the process with SIGPROF."""
REPORT_S = 60.0
CURRENT_BYTES = 1 << 22


class Worker:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.stories = self.actions = 0
        self.found: dict[str, str] = json.loads((home / "found.json").read_text())
        with (home / "current").open("wb+") as file:
            file.truncate(CURRENT_BYTES)
            self.current = mmap.mmap(file.fileno(), CURRENT_BYTES)
        self.at = 0

    def note(self, text: str) -> None:
        """Where a death leaves it."""
        data = text.encode()
        self.current[self.at : self.at + len(data)] = data
        self.at += len(data)

    def tell(self, seed: int) -> bool:
        """One story; False if it has found something."""
        from tests.fuzz.sessions.grammar import actions
        from tests.fuzz.sessions.story import line
        from tests.fuzz.sessions.world import StoryRun, setting

        self.current[: self.at] = bytes(self.at)
        self.at = 0
        self.note(f"('seed', {seed})\n")
        self.stories += 1
        signal.setitimer(signal.ITIMER_PROF, STORY_S)
        with setting(seed) as catcher:
            world = StoryRun(catcher)
            try:
                for action in actions(seed, world):
                    self.note(line(action))
                    world.perform(action)
                world.end()
                return True
            except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
                self.keep(seed, world.done, error)
                return False
            finally:
                world.close()
                self.actions += len(world.done)

    def keep(self, seed: int, story: list[tuple[object, ...]], error: Exception) -> None:
        """One file per place where it was raised, or per thing that was wrong; shrunk."""
        from tests.fuzz.sessions.story import shrunk, text

        name = kind_of(error)
        if name in self.found:
            return
        path = self.home / "findings" / name
        path.parent.mkdir(exist_ok=True)
        trace = "".join(traceback.format_exception(error))
        self.found[name] = f"{error!r}"[:200]
        print(f"FOUND {path}: seed {seed}, {len(story)} actions: {error!r}"[:600], flush=True)
        path.with_suffix(".txt").write_text(trace)
        path.write_text(text([("seed", seed), *story]))
        story = shrunk(story, lambda s: outcome(s, seed) == name)
        path.write_text(text([("seed", seed), *story]))
        print(
            f"shrunk to {len(story)} actions, {len(cut_text := text(story))} characters\n{cut_text[:3000]}", flush=True
        )

    def save(self) -> None:
        (self.home / "found.json").write_text(json.dumps(self.found))


def kind_of(error: Exception) -> str:
    """The same for two stories that end in the same way, as far as that can be told."""
    places = [(f.filename.rpartition("/")[2], f.name) for f in traceback.extract_tb(error.__traceback__)]
    said = "".join(c for c in str(error) if not c.isdigit())[:60] if isinstance(error, AssertionError) else ""
    return sha256(repr((type(error).__name__, places[-2:], said)).encode()).hexdigest()[:12]


def outcome(story: list[tuple[object, ...]], seed: int) -> str:
    """What it ends in; "" for nothing."""
    from tests.fuzz.sessions.world import run

    signal.setitimer(signal.ITIMER_PROF, STORY_S)
    try:
        run(story, seed)
    except Exception as error:  # noqa: BLE001
        return kind_of(error)
    return ""


def main(checkout: Path, home: Path, seed: int, seconds: float, first_only: bool) -> None:
    build.use(checkout)
    started, worker = time.monotonic(), Worker(home)
    report = started + REPORT_S
    state = json.loads((home / "state.json").read_text())
    while (now := time.monotonic()) < started + seconds:
        good = worker.tell(seed)
        seed += 1
        if not good:
            worker.save()
        if now > report or not good:
            report = now + REPORT_S
            print(said(state, worker, seed), flush=True)
        (home / "state.json").write_text(json.dumps(after(state, worker, seed)))
        if not good and first_only:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(said(state, worker, seed), flush=True)


def after(state: dict[str, float], worker: Worker, seed: int) -> dict[str, float]:
    return {
        "seed": seed,
        "stories": state["stories"] + worker.stories,
        "actions": state["actions"] + worker.actions,
        "cpu_s": state["cpu_s"] + time.process_time(),
        "hangs": state["hangs"],
        "crashes": state["crashes"],
    }


def said(state: dict[str, float], worker: Worker, seed: int) -> str:
    text = "{cpu_s:7.0f} CPU s  {stories:8} stories  {actions:9} actions  {crashes} crashes  {hangs} hangs  {found} others  seed {seed}"
    return text.format(**after(state, worker, seed), found=len(worker.found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), bool(int(sys.argv[5])))
