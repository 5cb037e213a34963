"""`kvitto.Broker`: a real broker in this process, with real sockets and a real directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import kvitto
from kvitto.base.config import Config, ConfigError
from kvitto.base.errors import StoreError
from kvitto.client import Connection
from kvitto.server.embedded import Broker


@contextmanager
def channel_on(parameters: str | pika.ConnectionParameters) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(parameters) if isinstance(parameters, str) else parameters)
    yield connection.channel()
    connection.close()


def test_messages_outlive_the_broker_in_a_given_directory(tmp_path: Path) -> None:
    """P3, P4: persistent by default, in order, less those acknowledged."""
    with kvitto.Broker(tmp_path) as broker, channel_on(broker.url) as channel:
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for i in range(10):
            channel.basic_publish("", "q", b"%d" % i)
        method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)
    with kvitto.Broker(tmp_path) as broker, channel_on(broker.url) as channel:
        found = [channel.basic_get("q", auto_ack=True) for _ in range(9)]
        assert [body for _, _, body in found] == [b"%d" % i for i in range(1, 10)]
        assert [method.redelivered for method, _, _ in found] == [False] * 9
        assert channel.basic_get("q") == (None, None, None)


def test_two_brokers_live_side_by_side() -> None:
    with kvitto.Broker() as one, kvitto.Broker() as two:
        with channel_on(one.url) as channel:
            channel.queue_declare("only-here")
        with channel_on(two.url) as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.queue_declare("only-here", passive=True)
        assert caught.value.reply_code == 404


def test_a_temporary_directory_goes_with_the_broker() -> None:
    with kvitto.Broker() as broker:
        assert broker.data_dir.is_dir()
    assert not broker.data_dir.exists()


def test_a_directory_belongs_to_one_broker(tmp_path: Path) -> None:
    """D5."""
    with kvitto.Broker(tmp_path), pytest.raises(StoreError, match="in use by process"):
        kvitto.Broker(tmp_path).start()


def test_a_taken_port_is_an_error_for_the_caller(tmp_path: Path) -> None:
    with kvitto.Broker() as broker, pytest.raises(OSError, match=f"in use: '127.0.0.1:{broker.port}'"):
        kvitto.Broker(tmp_path, port=broker.port).start()


@pytest.mark.parametrize("name", ["url", "port", "http_url", "data_dir"])
def test_what_a_broker_has_only_once_it_is_started(name: str) -> None:
    with pytest.raises(RuntimeError, match="the broker is not started: `with"):
        getattr(kvitto.Broker(), name)


def test_without_http_there_is_no_http_url(tmp_path: Path) -> None:
    with (
        kvitto.Broker(tmp_path) as broker,
        pytest.raises(RuntimeError, match=r"make it with kvitto.Broker\(http_port=0"),
    ):
        broker.http_url  # noqa: B018


def test_an_empty_directory_name_is_refused() -> None:
    """It was the current directory."""
    with pytest.raises(ConfigError, match="data_dir is empty"):
        kvitto.Broker("")


@pytest.mark.slow
def test_a_start_takes_less_than_a_tenth_of_a_second_of_cpu() -> None:
    """The median of nine starts, after the modules have been imported once."""
    code = (
        "import statistics, time, kvitto\n"
        "def once():\n"
        "    t = time.process_time(); b = kvitto.Broker().start(); d = time.process_time() - t; b.stop(); return d\n"
        "once(); print(statistics.median(once() for _ in range(9)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    assert float(done.stdout) < 0.1


def test_the_fixture_is_a_broker(kvitto_broker: Broker) -> None:
    with channel_on(kvitto_broker.url) as channel:
        assert channel.is_open


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command (Debian: apt install openssl) to make a certificate")
    place = tmp_path_factory.mktemp("tls")
    cert, key = place / "cert.pem", place / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
    return cert, key


def test_a_tls_listener_serves_large_and_small_messages(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    broker = Broker(tmp_path)
    broker._config = Config(data_dir=tmp_path, port=0, http_port=None, tls_port=0, tls_cert=cert, tls_key=key)
    with broker:
        assert broker._server is not None
        options = pika.SSLOptions(ssl.create_default_context(cafile=cert), "localhost")
        parameters = pika.ConnectionParameters("127.0.0.1", broker._server.tls_port, ssl_options=options)
        bodies = [b"small", b"x" * 3_000_000, b""]
        with channel_on(parameters) as channel:
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish("", "q", body)
            assert [channel.basic_get("q", auto_ack=True)[2] for _ in bodies] == bodies


def test_it_is_an_asynchronous_context_manager_too() -> None:
    """The caller's loop goes on while it starts and stops."""

    async def use() -> None:
        async with Broker(http_port=0) as broker:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(b"AMQP\0\0\x09\x01")
            assert (await reader.readexactly(1)) == b"\x01"
            writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", broker.port)

    asyncio.run(use())


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvitto-broker"]


def test_a_broker_that_runs_is_not_started_again() -> None:
    """The first one would have gone on for ever, and its directory with it."""
    before = running()
    with kvitto.Broker() as broker:
        url = broker.url
        with pytest.raises(RuntimeError, match="started already"):
            broker.start()
        assert broker.url == url
    assert running() == before
    with broker:  # but later
        pass
    assert running() == before


def test_several_threads_may_stop_it() -> None:
    broker, before = kvitto.Broker().start(), running()
    failed: list[BaseException] = []

    def stop() -> None:
        try:
            broker.stop()
        except BaseException as error:  # noqa: BLE001 - told by the assertion
            failed.append(error)

    threads = [threading.Thread(target=stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(running()) == len(before) - 1


def test_who_gives_up_while_it_starts_leaves_no_broker_behind() -> None:
    before = running()

    async def give_up() -> None:
        async def enter() -> None:
            async with kvitto.Broker():
                raise AssertionError("it was to be cancelled")

        entering = asyncio.create_task(enter())
        while running() == before:
            await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    asyncio.run(give_up())
    assert running() == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_broker_that_has_ended_holds_no_file(tmp_path: Path) -> None:
    """Each broker of a test run kept two and more, until there were too many for `select`."""
    with Broker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.publish(b"x", "", "q")
        channel.tx_select()
        channel.publish(b"y", "", "q")
        channel.tx_commit()
    held = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of this look itself
            held.append(os.readlink(entry))
    assert not [path for path in held if path.startswith(str(tmp_path))]
