"""Stories of several connections over one broker (W8, C2, A6): a fixed number of new ones, and those that found a mistake once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.wire import methods as m
from tests.fuzz.sessions.grammar import actions
from tests.fuzz.sessions.grammar.base import encoded
from tests.fuzz.sessions.story import Action, Story, read, shrunk, text
from tests.fuzz.sessions.world import StoryRun, run, setting
from tests.protocol.raw import content

FOUND = sorted(Path(__file__).with_name("found").iterdir())
STORIES, PARTS = 120, 4
SEED = 7


@pytest.mark.parametrize("part", range(PARTS))
def test_stories_end_without_a_finding(part: int) -> None:
    """No internal error, no server failure, nothing confirmed lost; the next peer is served, before and after a restart."""
    for seed in range(SEED + part, SEED + STORIES, PARTS):
        with setting(seed) as catcher:
            world = StoryRun(catcher)
            try:
                for action in actions(seed, world):
                    world.perform(action)
                world.end()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error!r}\n{text(world.done)}") from error
            finally:
                world.close()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_a_story_that_found_a_mistake_once_finds_it_no_more(path: Path) -> None:
    (_, seed), *story = read(path.read_text())
    run(story, seed)


def test_the_same_seed_tells_the_same_story() -> None:
    told = []
    for _ in range(2):
        with setting(SEED) as catcher:
            world = StoryRun(catcher)
            for action in actions(SEED, world):
                world.perform(action)
            written = [bytes(peer.written) for peer in world.gone]
            world.close()
            told.append((world.done, written, world.disk.files()))
    assert told[0] == told[1]


# -- the oracle itself ---------------------------------------------------------------------------------------------


def login(slot: int) -> list[Action]:
    return [("connect", slot, "guest", "/", 131072, 15, 0), ("send", slot, 0, encoded(1, m.ChannelOpen()))]


def confirmed(*bodies: bytes) -> Story:
    """Messages in queue "keep", and the confirms for them."""
    first = encoded(1, m.ConfirmSelect(), m.QueueDeclare("keep", durable=True))
    sent = b"".join(content(1, m.BasicPublish("", "keep"), b"\0\0", body) for body in bodies)
    return [*login(0), ("send", 0, 0, first), ("sync",), ("sync",), ("send", 0, 0, sent), ("sync",), ("sync",)]


def test_a_confirmed_message_that_is_not_there_after_the_story_is_found() -> None:
    with setting(SEED) as catcher:
        world = StoryRun(catcher)
        for action in confirmed(b"m1", b"m2"):
            world.perform(action)
        queue = world.harness.broker.vhosts["/"].queues["keep"]
        queue.purge()
        with pytest.raises(AssertionError, match="settled by nobody, and not there: m1 m2"):
            world.end()
        world.close()


def test_a_message_that_its_consumer_has_acked_may_be_gone() -> None:
    consumer: Story = [*login(1), ("send", 1, 0, encoded(1, m.BasicConsume("keep", "c1"))), ("sync",)]
    run([*confirmed(b"m1", b"m2"), *consumer, ("send", 1, 0, encoded(1, m.BasicAck(1))), ("sync",)], SEED)


def test_an_exception_in_a_turn_is_a_finding_and_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that needs a purge of a queue with a message in it."""
    right = WorkQueue.purging

    def wrong(queue: WorkQueue) -> tuple[int, Iterator[None]]:
        if queue.ready:
            raise ZeroDivisionError
        return right(queue)

    # input that a turn leaves to a later one would need one more action
    monkeypatch.setattr("kvitto.protocol.hub.PUT_OFF_MAX", 0)
    try:
        monkeypatch.setattr(WorkQueue, "purging", wrong)
    except TypeError:
        pytest.skip("a compiled class cannot be changed")

    def fails(story: Story) -> bool:
        try:
            run(story, SEED)
        except AssertionError as error:
            return "ZeroDivisionError" in str(error)
        return False

    noise: Story = [("time", 1.0), ("turn",), *login(1), ("send", 1, 0, encoded(1, m.BasicQos(0, 1, False)))]
    story = [*confirmed(b"m1", b"m2"), *noise, ("send", 0, 0, encoded(1, m.QueuePurge("keep"))), *noise]
    assert fails(story)
    kinds = [action[0] for action in shrunk(story, fails)]
    assert set(kinds) <= {"connect", "send", "sync"} and len(kinds) <= 7
