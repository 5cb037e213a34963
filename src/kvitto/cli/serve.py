"""`kvitto serve`: one broker in this process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kvitto.base import config as settings
from kvitto.base.build import compiled
from kvitto.base.config import Config, ConfigError
from kvitto.base.errors import StoreError
from kvitto.server.server import Server

log = logging.getLogger("kvitto")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("serve", help="run a broker", description="Run a broker until SIGTERM or Ctrl-C.")
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE.toml", help="settings, named as the options here; options win")
    add("--data-dir", type=Path, metavar="DIR", help="where everything is kept (default: kvitto-data)")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, help="AMQP port, 0 picks one (default: 5672)")
    add("--http-port", type=int, help="HTTP port, 0 picks one (default: 15672)")
    add("--tls-port", type=int, help="AMQP over TLS, with --tls-cert and --tls-key")
    add("--tls-cert", type=Path, metavar="PEM")
    add("--tls-key", type=Path, metavar="PEM")
    add("--sync", choices=("on", "off"), help="off: confirm before the disk has the message (default: on)")
    add("--log-json", action="store_const", const=True, help="log lines as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        values = settings.read(args.config) if args.config else {}
    except ConfigError as error:
        print(f"kvitto: {error}", file=sys.stderr)
        return 2
    for name in ("data_dir", "host", "port", "http_port", "tls_port", "tls_cert", "tls_key", "log_json"):
        if getattr(args, name) is not None:
            values[name] = getattr(args, name)
    if args.sync is not None:
        values["sync"] = args.sync == "on"
    config = Config(**values)
    set_up_log(config.log_json)
    raise_file_limit()
    try:
        return asyncio.run(serve(config))
    except (StoreError, ValueError, OSError) as error:
        print(f"kvitto: {error}", file=sys.stderr)
        return 1


async def serve(config: Config) -> int:
    """Run until a signal; 0 after an end in order."""
    server = Server(config)
    if not compiled():
        log.warning(
            "running interpreted, much slower: install a C compiler (Debian: apt install gcc python3-dev) and reinstall"
        )
    try:
        await server.start()
    except OSError as error:
        print(f"kvitto: cannot listen on {config.host}: {error.strerror or error}", file=sys.stderr)
        return 1
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not stopping:
            log.info("stopping")
            stopping.append(loop.create_task(server.stop()))
        else:
            log.warning("stopped at once by a second signal; what was confirmed is on disk")
            os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if not config.sync:
        log.warning("--sync off: a confirm survives a crash of this process, not of the machine")
    gc.collect()
    gc.freeze()
    print(
        f"kvitto ready amqp={config.host}:{server.port} http={config.host}:{server.http_port}"
        f" data={server.store_path} pid={server.pid}",
        flush=True,
    )
    await server.run_until_stopped()
    for task in stopping:
        await task
    return 0


def raise_file_limit() -> None:
    """Every connection and every queue with messages has open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
    except (ValueError, OSError):
        log.debug("the limit of open files stays at %d", soft)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_log(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
