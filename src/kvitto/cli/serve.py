"""`kvitto serve`: reads the settings and runs one broker in this process until a signal. `main.main` calls it."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import resource
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvitto.base import config as settings
from kvitto.base.build import compiled, how_to_compile
from kvitto.base.config import Config, ConfigError
from kvitto.base.errors import StoreError
from kvitto.cli.log import set_up as set_up_log
from kvitto.server.garbage import clean_up, spare_the_loop
from kvitto.server.listening import in_url
from kvitto.server.poller import run as run_loop
from kvitto.server.server import Server

log = logging.getLogger("kvitto")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run a broker",
        description="Run a broker until SIGTERM or Ctrl-C.",
        argument_default=argparse.SUPPRESS,  # an option that is not given has no attribute, so that the configuration file can set it
    )
    add = parser.add_argument
    add(
        "--config",
        type=path,
        metavar="FILE.toml",
        help="file with settings, named as the options here; options override it",
    )
    add("--data-dir", type=path, metavar="DIR", help="directory for all data (default: kvitto-data)")
    add(
        "--host",
        action="append",
        help="address to listen on for AMQP, may be repeated; :: for all (default: 127.0.0.1)",
    )
    add("--port", type=port, help="AMQP port, 0 picks one (default: 5672)")
    add("--http-host", metavar="HOST", help="address to listen on for HTTP (default: that of --host)")
    add("--http-port", type=http_port, metavar="PORT", help="HTTP port, 0 picks one, off: no HTTP (default: 15672)")
    add("--tls-port", type=port, help="AMQP over TLS, with --tls-cert and --tls-key")
    add("--tls-cert", type=path, metavar="PEM")
    add("--tls-key", type=path, metavar="PEM")
    add("--tls-ca", type=path, metavar="PEM", help="authorities whose client certificates may log in (EXTERNAL)")
    add(
        "--tls-login-from",
        choices=settings.LOGIN_FROM,
        help=f"part of the certificate that is the user's name (default: {settings.LOGIN_FROM[0]})",
    )
    add("--disk-free-limit", type=size, metavar="SIZE", help="publishers wait while less is free (default: 50MiB)")
    add("--memory-limit", type=memory, metavar="SIZE", help="publishers wait while more is used (default: 40%%)")
    add("--sync", choices=("on", "off"), help="off: confirm before the disk has the message (default: on)")
    add("--log-json", action="store_true", help="write log lines as JSON")
    add(
        "--max-connections",
        type=int,
        metavar="N",
        help="AMQP connections (default: as many as the limit of open files allows)",
    )
    add("--max-channels", type=int, metavar="N", help="channels per connection (default: 2047)")
    add("--max-queues", type=int, metavar="N", help="queues (default: as many as the limit of open files allows)")
    parser.set_defaults(run=run)


def port(text: str) -> int:
    """The value of an argument that is a port."""
    if not (text.isascii() and text.isdigit() and int(text) <= settings.PORT_MAX):
        raise argparse.ArgumentTypeError(f"must be 0 to {settings.PORT_MAX}, not {text}")
    return int(text)


def path(text: str) -> Path:
    """The value of an argument that is a path."""
    try:
        return settings.place(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size(text: str) -> int:
    """The value of an argument that is a number of bytes."""
    try:
        return settings.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def memory(text: str) -> int:
    """The value of an argument that is a number of bytes, or a share of the memory."""
    try:
        return settings.memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def http_port(text: str) -> int | None:
    """The value of an argument that is a port, or None for "off"."""
    return None if text == settings.OFF else port(text)


def run(args: argparse.Namespace) -> int:
    given = vars(args)
    # SIGHUP is ignored until there are TLS files to read again: a start may take long, and a renewed certificate must
    # not end it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        values = settings.read(given["config"]) if "config" in given else {}
        values.update({field.name: given[field.name] for field in fields(Config) if field.name in given})
        if "host" in given:
            values["host"], values["more_hosts"] = given["host"][0], tuple(given["host"][1:])
        if "sync" in given:
            values["sync"] = given["sync"] == "on"
        config = Config(**values)
        set_up_log(config.log_json)
        raise_file_limit()
        return run_loop(serve(config))
    except ConfigError as error:
        print(f"kvitto: {error}", file=sys.stderr)
        return 2
    except (StoreError, ValueError, OSError) as error:
        print(f"kvitto: {error}", file=sys.stderr)
        return 1


async def serve(config: Config) -> int:
    """Run the broker until a signal. Return 0 after an end in order."""
    server = Server(config)
    if not compiled() and (advice := how_to_compile()):
        log.warning("running interpreted, much slower: %s", advice)
    try:
        await server.start()
    except OSError as error:
        print(f"kvitto: {cannot_listen(server, error)}", file=sys.stderr)
        return 1
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not stopping:
            log.info("stopping")
            stopping.append(loop.create_task(server.stop()))
        else:
            log.warning("stopped at once by a second signal; all confirmed messages are on disk")
            os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    if not config.sync:
        log.warning("--sync off: a confirm survives a crash of this process, not of the machine")
    spare_the_loop()
    server.when_idle = clean_up
    print(ready(server), flush=True)
    await server.run_until_stopped()
    for task in stopping:
        await task
    return 0


def ready(server: Server) -> str:
    """Return the line for the program that started this one. Its form is fixed. Listeners that are off are left out,
    further hosts are last."""
    config = server.config
    host = in_url(config.host)
    http = f" http={in_url(config.http_host)}:{server.http_port}" if config.http_port is not None else ""
    tls = f" tls={host}:{server.tls_port}" if config.tls_port is not None else ""
    others = ",".join(f"{in_url(other)}:{server.port}" for other in config.more_hosts)
    also = f" also={others}" if others else ""
    return f"kvitto ready amqp={host}:{server.port}{http} data={server.store_path} pid={server.pid}{tls}{also}"


def cannot_listen(server: Server, error: OSError) -> str:
    """Say why the first missing listener could not be opened: they are opened in this order."""
    config = server.config
    listeners = (
        ("--port", config.host, config.port, server.port),
        ("--tls-port", config.host, config.tls_port, server.tls_port),
        ("--http-port", config.http_host, config.http_port, server.http_port),
    )
    option, where = next(
        (name, error.filename or f"{in_url(host)}:{wanted}")
        for name, host, wanted, found in listeners
        if wanted is not None and not found
    )
    number = error.errno or 0
    # asyncio's text for a system error repeats the address; an error of the resolver has a number below 0
    why = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
    hint = f" (is another broker running? choose another {option})" if number == errno.EADDRINUSE else ""
    return f"cannot listen on {where}: {why}{hint}"


def raise_file_limit() -> None:
    """Raise the soft limit of open files, because each connection and each queue with messages needs descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
    except (ValueError, OSError):
        log.debug("the limit of open files stays at %d", soft)
