"""A connection that is reset at some bytes of a conversation, in both directions. `python -m tests.client.aio.resets` tries each."""

import asyncio
import os
import random
from typing import Protocol

import pytest

import kvitto
from kvitto.client.aio import Returned
from tests.client.aio.resets import MODES, Mode, search
from tests.client.aio.test_reconnect import cut, url
from tests.support.faults import Faults
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")


class HasUrl(Protocol):
    url: str
    port: int


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_reset_anywhere_leaves_nothing_hanging_lost_or_doubled(
    kvitto_broker: HasUrl, mode: Mode, twice: bool
) -> None:
    rng = random.Random(int(os.environ["KVITTO_SEED"]))
    assert search(kvitto_broker.url, [mode], 173, rng, twice=twice) > 10


@asynchronous
async def test_a_question_that_is_asked_again_and_reaches_no_queue_is_returned(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        asked = await channel.queue(exclusive=True)  # it gets another name after the reconnect
        async with channel.rpc(resend=True) as rpc, asked.consume() as consumer:
            asking = asyncio.create_task(rpc.call(b"?", asked.name))
            (await anext(consumer)).ack()
            await cut(proxy, connection)
            with pytest.raises(Returned):
                async with asyncio.timeout(30):
                    await asking
