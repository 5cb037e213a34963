"""The asyncio client over TLS, and in uvloop's event loop."""

import asyncio
import importlib
import ssl
from pathlib import Path
from typing import Protocol

import pytest

import kvitto
from kvitto.client import ConnectFailed
from tests.support.certificates import Authority
from tests.support.running import asynchronous


class HasUrl(Protocol):
    url: str
    port: int


async def use(url: str) -> None:
    """Publish and consume what does not fit into one read."""
    async with kvitto.connect(url) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        sent = [bytes([n]) * 100_000 for n in range(20)]
        await channel.publish_many(sent, queue.name)
        found = []
        async for message in queue.consume(prefetch=3):
            async with message:
                found.append(message.body)
            if len(found) == len(sent):
                break
        assert found == sent


@asynchronous
async def test_tls_is_verified_and_carries_everything(kvitto_broker: HasUrl, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", "/CN=localhost", "DNS:localhost,IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)

    held: list[asyncio.Task[None] | None] = []  # asyncio itself does not keep the tasks of a server

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(asyncio.current_task())
        back, forth = await asyncio.open_connection("127.0.0.1", kvitto_broker.port)
        await asyncio.gather(copy(reader, forth), copy(back, writer), return_exceptions=True)

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    url = f"amqps://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
        await kvitto.connect(url)
    await use(f"{url}?cacertfile={authority.cert}")
    await use(f"{url}?verify=verify_none")
    server.close()
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def test_uvloop_works(kvitto_broker: HasUrl) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use(kvitto_broker.url))


def test_import_of_the_client_loads_neither_the_broker_nor_a_client_that_is_not_used() -> None:
    import subprocess
    import sys

    code = "import kvitto, sys; kvitto.connect; print([name for name in sys.modules if name.startswith('kvitto.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert importlib.import_module("kvitto.client.aio").__name__ in loaded
    for package in ("broker", "server", "store", "protocol", "http", "perf"):
        assert f"'kvitto.{package}" not in loaded
