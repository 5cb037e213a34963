"""The process of the shovels: it obeys, and waits for those that end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvitto.shovel import process
from kvitto.shovel.worker import Status

ORDER: dict[str, Any] = {"vhost": "/", "name": "s", "edition": 1, "address": "amqp://127.0.0.1:1", "login": ["u", "p"]}


def test_the_end_waits_for_a_shovel_that_was_just_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one that was deleted was ended in the middle of its load, which came again then."""
    ended = []

    class Slow:
        status = Status("running", since=0.0)

        def __init__(self, *_: object) -> None: ...

        async def run(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # such as the acks of a load that was confirmed
                ended.append(True)

    async def story() -> None:
        shovels = process.Shovels()
        shovels.obey(
            ORDER | {"value": {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}}
        )
        await asyncio.sleep(0)
        shovels.obey(ORDER | {"edition": 2})
        await shovels.stop()

    monkeypatch.setattr(process, "Shovel", Slow)
    asyncio.run(story())
    assert ended == [True]
