"""Long work in pieces: what runs when, and who suffers from its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitto.broker.jobs import PIECES_PER_TURN, Jobs


class Contained:
    """An owner that keeps what was contained."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def contain(self, error: Exception) -> None:
        self.errors.append(error)


def counting(seen: list[str], name: str, pieces: int) -> Iterator[None]:
    for _ in range(pieces):
        seen.append(name)
        yield


def failing(error: Exception, after: int) -> Iterator[None]:
    for _ in range(after):
        yield
    raise error


def test_the_first_piece_runs_at_once_and_a_job_of_one_piece_is_done() -> None:
    jobs, seen = Jobs(), list[Any]()
    jobs.start(iter([]), lambda: seen.append("done"))
    assert seen == ["done"] and not jobs.waiting


def test_a_turn_runs_a_few_pieces() -> None:
    jobs, seen = Jobs(), list[Any]()
    jobs.start(counting(seen, "a", 10), lambda: seen.append("done"))
    assert seen == ["a"]
    jobs.run()
    assert len(seen) == 1 + PIECES_PER_TURN
    while jobs.waiting:
        jobs.run()
    assert seen == ["a"] * 10 + ["done"]


def test_jobs_have_their_pieces_in_rotation() -> None:
    jobs, seen = Jobs(), list[Any]()
    for name in "ab":
        jobs.start(counting(seen, name, 5))
    jobs.run()
    assert seen[2:] == ["a", "b"] * (PIECES_PER_TURN // 2)


def test_an_error_in_the_first_piece_reaches_the_caller() -> None:
    with pytest.raises(RuntimeError):
        Jobs().start(failing(RuntimeError(), 0), owner=Contained())


def test_a_later_error_reaches_the_owner_alone() -> None:
    jobs, owner, seen, error = Jobs(), Contained(), [], RuntimeError()
    jobs.start(failing(error, 1), lambda: seen.append("done"), owner)
    jobs.start(counting(seen, "b", 3))
    while jobs.waiting:
        jobs.run()
    assert owner.errors == [error]
    assert seen == ["b"] * 3


def test_a_later_error_of_work_that_nobody_owns_reaches_the_server() -> None:
    jobs = Jobs()
    jobs.start(failing(RuntimeError(), 1))
    with pytest.raises(RuntimeError):
        jobs.run()


def test_a_job_that_waits_for_the_disk_costs_no_turn() -> None:
    jobs, seen = Jobs(), list[int]()

    def steps() -> Iterator[bool]:
        for number in range(3):
            seen.append(number)
            yield False

    jobs.start(steps())
    assert list(jobs.waiting), "the first step is the caller's"
    for expected in (2, 3):
        jobs.run()
        jobs.run()
        assert len(seen) == expected and not jobs.waiting
        jobs.resume()
        assert len(jobs.waiting) == 1
    jobs.run()
    assert not jobs.waiting
