"""A real broker in a thread of this process, for tests and notebooks. The pytest fixture `kvitto_broker` uses it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from kvitto.base.config import Config, ConfigError
from kvitto.server.listening import in_url
from kvitto.server.poller import run
from kvitto.server.server import Server

NOT_STARTED = "the broker is not started: `with kvitto.Broker() as broker:` starts it, and so does start()"


class Broker:
    """`with kvitto.Broker() as broker:`, or `async with`, then connect to `broker.url`.

    data_dir: the directory for messages; None means a temporary one that lives from start to stop. port 0 picks a free
    one. http_port None means no HTTP. limits: values as in the table [limits] of the configuration
    (docs/limits.md). Raises ConfigError for invalid settings, StoreError or OSError if it cannot
    start.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int | None = None,
        sync: bool = True,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        if data_dir == "":
            raise ConfigError("data_dir is empty: . stands for the current directory, None for a temporary one")
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._temporary = data_dir is None
        self._config = Config(host=host, port=port, http_port=http_port, sync=sync, limits=limits or {})
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._error: BaseException | None = None
        self._turning = threading.RLock()
        """Held while a thread starts or stops the broker; another thread that wants to do so waits."""

    def start(self) -> Broker:
        """Start the broker, and return when it accepts connections. Raise RuntimeError if it runs already."""
        with self._turning:
            if self._thread is not None:
                raise RuntimeError("the broker is started already: make another kvitto.Broker")
            return self._start()

    def _start(self) -> Broker:
        ready = threading.Event()
        self._server = None
        if self._temporary:
            self._data_dir = Path(tempfile.mkdtemp(prefix="kvitto-"))
        self._config = replace(self._config, data_dir=self.data_dir)
        self._thread = threading.Thread(target=self._run, args=(ready,), name="kvitto-broker", daemon=True)
        self._thread.start()
        ready.wait()
        if self._error is not None:
            self.stop()
        return self

    def stop(self) -> None:
        """Stop the broker in order. Raise the error that ended it, if there was one."""
        with self._turning:
            if self._thread is not None:
                self._stop(self._thread)

    def _stop(self, thread: threading.Thread) -> None:
        if self._loop is not None and self._server is not None:
            stopping = self._server.stop()
            try:
                asyncio.run_coroutine_threadsafe(stopping, self._loop)
            except RuntimeError:  # the loop has ended by itself
                stopping.close()
        thread.join()
        self._thread = None
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def data_dir(self) -> Path:
        """The data directory. A temporary one exists from start to stop."""
        if self._data_dir is None:
            raise RuntimeError(NOT_STARTED)
        return self._data_dir

    @property
    def port(self) -> int:
        return self._running().port

    @property
    def url(self) -> str:
        """The AMQP URL with guest's password."""
        return f"amqp://guest:guest@{in_url(self._config.host)}:{self.port}/%2f"

    @property
    def http_url(self) -> str:
        """The base URL of the HTTP API. It exists only with an http_port."""
        server = self._running()
        if not server.http_port:
            raise RuntimeError("the broker has no HTTP listener: make it with kvitto.Broker(http_port=0)")
        return f"http://{in_url(self._config.http_host)}:{server.http_port}"

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError(NOT_STARTED)
        return self._server

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Broker:
        """Start the broker in its own thread and event loop, while this loop goes on."""
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if starting.exception() is None:  # the caller will not leave a context that it has not entered
                await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            server = Server(self._config)
            await server.start()
            self._server = server
            ready.set()
            try:
                await server.run_until_stopped()
            finally:
                await server.stop()

        try:
            run(main())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that called start or stop
            self._error = error
        finally:
            ready.set()
