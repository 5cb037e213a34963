"""Addresses: several of them, IPv4 and IPv6 on one socket, and what is said of one that cannot be had."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from kvitto.base.config import Config, ConfigError, read
from kvitto.server.listening import bind
from kvitto.server.poller import run as run_loop
from kvitto.server.server import Server


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def greeting(host: str, port: int) -> bytes:
    """The first bytes that a broker says there."""
    with socket.create_connection((host, port), 10) as client:
        client.sendall(b"AMQP\0\0\x09\x01")
        return client.recv(1)


def asked(config: Config, *addresses: str) -> list[bytes]:
    """What a server with this configuration says at each address, AMQP and then HTTP."""

    async def run() -> list[bytes]:
        server = Server(config)
        await server.start()
        answers = [await asyncio.to_thread(greeting, address, server.port) for address in addresses]
        for address in addresses:
            reader, writer = await asyncio.open_connection(address, server.http_port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            answers.append((await reader.readline())[:12])
            writer.close()
        peers = {connection.peer.rpartition(":")[0] for connection in server.hub.connections}
        assert peers <= {"127.0.0.1", "127.0.0.2", "::1"}, peers
        await server.stop()
        return answers

    return run_loop(run())


def config(place: Path, *hosts: str) -> Config:
    return Config(data_dir=place, host=hosts[0], more_hosts=hosts[1:], port=0, http_port=0)


def test_several_hosts_have_one_port(tmp_path: Path) -> None:
    assert asked(config(tmp_path, "127.0.0.1", "127.0.0.2"), "127.0.0.1", "127.0.0.2") == [
        *[b"\x01"] * 2,
        *[b"HTTP/1.1 200"] * 2,
    ]


@needs_ipv6
@pytest.mark.parametrize("hosts", [["::"], ["::", "0.0.0.0"], ["::1", "127.0.0.1"]])
def test_all_addresses_are_those_of_ipv4_too(tmp_path: Path, hosts: list[str]) -> None:
    assert asked(config(tmp_path, *hosts), "127.0.0.1", "::1") == [*[b"\x01"] * 2, *[b"HTTP/1.1 200"] * 2]


@needs_ipv6
def test_one_address_of_ipv6_is_not_ipv4(tmp_path: Path) -> None:
    async def run() -> None:
        (sock,) = await bind(["::1"], 0)
        sock.listen()
        with sock, pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", sock.getsockname()[1]), 1)

    run_loop(run())


def test_the_address_that_cannot_be_had_is_named() -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            run_loop(bind(["127.0.0.1", "127.0.0.2"], port))
        assert caught.value.filename == f"127.0.0.2:{port}"
    with pytest.raises(OSError) as unknown:
        run_loop(bind(["nowhere.invalid"], 1))
    assert unknown.value.filename == "nowhere.invalid:1"


def test_an_http_host_is_the_only_one_for_http() -> None:
    both = Config(host="127.0.0.1", more_hosts=("127.0.0.2",), http_host="127.0.0.1")
    assert (both.hosts, both.http_hosts) == (("127.0.0.1", "127.0.0.2"), ("127.0.0.1",))
    assert Config(host="127.0.0.1", more_hosts=("::1",)).http_hosts == ("127.0.0.1", "::1")


def test_the_configuration_may_name_one_or_several(tmp_path: Path) -> None:
    file = tmp_path / "kvitto.toml"
    file.write_text('host = ["127.0.0.1", "::1"]\n')
    assert Config(**read(file)).hosts == ("127.0.0.1", "::1")
    file.write_text('host = "::1"\n')
    assert Config(**read(file)).hosts == ("::1",)
    for wrong in ("[]", "[1]", "7"):
        file.write_text(f"host = {wrong}\n")
        with pytest.raises(ConfigError, match="host must be"):
            read(file)
    file.write_text('etcd = ["http://a:2379", "http://b:2379"]\n')
    assert read(file)["etcd"] == "http://a:2379,http://b:2379"
    for wrong in ("[]", '[""]', '["http://a, http://b"]'):
        file.write_text(f"etcd = {wrong}\n")
        with pytest.raises(ConfigError, match="etcd must be an address"):
            read(file)
    with pytest.raises(ConfigError, match="--host is empty"):
        Config(more_hosts=("",))
