"""An HTTP server for webhooks that does what a test says, in a thread of its own."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answerer = Callable[["Seen", BaseHTTPRequestHandler], None]


@dataclass
class Seen:
    """A request. `number` counts from 0."""

    number: int
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    port: int
    seen: list[Seen] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    def bodies(self) -> list[bytes]:
        return [seen.body for seen in self.seen]


def says(status: int, **headers: str) -> Answerer:
    def answer(seen: Seen, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def resets(seen: Seen, handler: BaseHTTPRequestHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    os.close(handler.connection.detach())
    handler.close_connection = True


def babbles(seen: Seen, handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"hello, this is no HTTP\r\n" * 100)
    handler.close_connection = True


def drips(stop: threading.Event) -> Answerer:
    """One byte of an endless header after the other."""

    def answer(seen: Seen, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        try:
            while not stop.wait(0.05):
                handler.wfile.write(b"x")
        except OSError:
            handler.close_connection = True

    return answer


@contextmanager
def server(*answers: Answerer, tls: Any = None) -> Iterator[Server]:
    """A server that gives these answers to the first requests, and the last one to all others."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                seen = Seen(len(running.seen), self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                running.seen.append(seen)
            answers[min(seen.number, len(answers) - 1)](seen, self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError, ValueError):
                super().handle()

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    running = Server(http.server_port)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
