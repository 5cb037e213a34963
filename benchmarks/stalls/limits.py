"""Rows: many connections, and what they begin and do not end."""

from __future__ import annotations

import resource
import socket

from benchmarks.overload import connect
from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m
from kvitto.wire.spec import PROTOCOL_HEADER


def descriptors() -> None:
    """As many as the system allows this process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def half_open(site: Site, port: int, first: bytes) -> Steps:
    descriptors()
    yield
    for _ in range(site.count(10_000)):
        sock = site.keep(socket.create_connection(("127.0.0.1", port), 60))
        if first:
            sock.sendall(first)
    site.watch()


@row("10,000 connections that send nothing")
def silent_connections(site: Site) -> Steps:
    return half_open(site, site.port, b"")


@row("10,000 connections that send the first header only")
def half_handshakes(site: Site) -> Steps:
    return half_open(site, site.port, PROTOCOL_HEADER)


@row("10,000 connections to the TLS listener that send nothing", tls=True)
def silent_tls(site: Site) -> Steps:
    return half_open(site, site.tls_port, b"")


@row("10,000 TLS handshakes that are begun and never go on", tls=True)
def half_tls_handshakes(site: Site) -> Steps:
    return half_open(site, site.tls_port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")


@row("10,000 connections come, and leave at once")
def connections_end(site: Site) -> Steps:
    descriptors()
    yield
    peers = connect(site.port, site.count(10_000))
    for sock in peers:
        sock.close()
    site.watch()


@row("10,000 channels are opened and closed on one connection")
def channels(site: Site) -> Steps:
    peer = site.peer()
    yield
    for _ in range(site.count(10)):
        numbers = range(2, 1000)
        for number in numbers:
            peer.say(m.ChannelOpen(), channel=number)
        peer.wait(m.ChannelOpenOk, len(numbers))
        for number in numbers:
            peer.say(m.ChannelClose(200, "bye"), channel=number)
        peer.wait(m.ChannelCloseOk, len(numbers))
