"""A real broker in a thread of this process, for tests and notebooks."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from kvitto.base.config import Config
from kvitto.server.server import Server


class Broker:
    """`with kvitto.Broker() as broker:` connects to `broker.url`.

    data_dir: where the messages are kept; None = a temporary directory that goes with the broker. port 0 picks a free one.
    http_port None = no HTTP. Raises StoreError or OSError if it cannot start.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int | None = None,
        sync: bool = True,
    ) -> None:
        self._temporary = tempfile.mkdtemp(prefix="kvitto-") if data_dir is None else None
        self.data_dir = Path(data_dir or self._temporary or "")
        self._config = Config(
            data_dir=self.data_dir, host=host, port=port, http_host=host, http_port=http_port, sync=sync
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._error: BaseException | None = None

    def start(self) -> Broker:
        """Start and wait until it accepts connections."""
        ready = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(ready,), name="kvitto-broker", daemon=True)
        self._thread.start()
        ready.wait()
        self._raise()
        return self

    def stop(self) -> None:
        """Stop in order. Raises what ended the broker, if that was an error."""
        if self._thread is None:
            return
        if self._loop is not None and self._server is not None and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop)
        self._thread.join()
        self._thread = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    @property
    def port(self) -> int:
        assert self._server is not None, "the broker is not started"
        return self._server.port

    @property
    def url(self) -> str:
        """AMQP URL with guest's password."""
        return f"amqp://guest:guest@{self._config.host}:{self.port}/%2f"

    @property
    def http_url(self) -> str:
        """Base URL of the HTTP API; only with an http_port."""
        assert self._server is not None and self._server.http_port, "the broker has no HTTP listener"
        return f"http://{self._config.http_host}:{self._server.http_port}"

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            server = Server(self._config)
            await server.start()
            self._server = server
            ready.set()
            await server.run_until_stopped()
            await server.stop()

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that called start or stop
            self._error = error
        finally:
            ready.set()
