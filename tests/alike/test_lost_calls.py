"""RPC calls whose connection is lost, against each broker: they are asked again by choice only."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

import kvitto
from kvitto.client import ConnectionLost
from tests.support.faults import Faults
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.mark.parametrize("on_unconfirmed", ["raise", "resend"])
@pytest.mark.parametrize("resend", [False, True])
def test_a_call_is_asked_again_by_choice_only(
    port: int, on_unconfirmed: Literal["raise", "resend"], resend: bool
) -> None:
    @asynchronous
    async def test() -> None:
        async with (
            Faults(port) as proxy,
            kvitto.connect(f"amqp://127.0.0.1:{port}/") as answering,
            answering.channel() as channel,
            kvitto.connect(f"amqp://127.0.0.1:{proxy.port}/", on_unconfirmed=on_unconfirmed) as connection,
            connection.channel() as asking,
        ):
            questions = await channel.queue(exclusive=True)
            busy = await asking.queue(exclusive=True)
            async with busy.consume(), asking.rpc(resend=resend) as rpc, questions.consume() as consumer:
                for confirmed in (False, True):
                    proxy.mute = not confirmed
                    call = asyncio.create_task(rpc.call(b"1", questions.name))
                    first = await anext(consumer)
                    if confirmed:
                        await asking.publish(b"", busy.name)  # the confirm of the question has come, too
                    proxy.cut()
                    proxy.mute = False
                    if resend:
                        again = await anext(consumer)
                        assert (again.body, again.properties.correlation_id) == (b"1", first.properties.correlation_id)
                        await channel.reply(again, b"2")
                        assert (await call).body == b"2"
                    else:
                        with pytest.raises(ConnectionLost):
                            await call
                    call = asyncio.create_task(rpc.call(b"last", questions.name))
                    last = await anext(consumer)
                    assert last.body == b"last"
                    await channel.reply(last, b"")
                    await call

    test()
