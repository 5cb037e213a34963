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
from contextlib import nullcontext
from typing import Any

from kvitto.base import environment
from kvitto.base.build import compiled, how_to_compile
from kvitto.base.config import Config, ConfigError
from kvitto.base.errors import StoreError, StoreFull
from kvitto.base.log import set_up as set_up_log
from kvitto.cli.following import ANEW, STOPS, follow
from kvitto.cli.options import add_options, config_of
from kvitto.cluster.handshake import Refused
from kvitto.cluster.promotion import refuse_member
from kvitto.server import garbage
from kvitto.server.listening import in_url
from kvitto.server.notify import Notify
from kvitto.server.poller import run as run_loop
from kvitto.server.server import Server
from kvitto.server.tenure import Deposed, Election, NoRoom
from kvitto.store.disk import RealDisk

log = logging.getLogger("kvitto")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="run a broker",
        description="Run a broker until SIGTERM or Ctrl-C.",
        argument_default=argparse.SUPPRESS,  # an option that is not given has no attribute, so that other sources can set it
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    # SIGHUP is ignored until there are TLS files to read again: a start may take long, and a renewed certificate must
    # not end it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = {number: signal.signal(number, stop_early) for number in STOPS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    try:
        config = config_of(args, os.environ)
        set_up_log(config.log_json, config.log_level)
        for note in environment.notes(os.environ):
            log.warning("%s", note)
        raise_file_limit()
        if config.etcd:
            from kvitto.cli.candidate import run_node  # with the client of etcd, which no other start needs

            return run_node(config, lambda election: run_loop(serve(config, election)))
        refuse_member(RealDisk(str(config.data_dir)))
        if config.follow:
            return follow(config)
        return run_loop(serve(config))
    except ConfigError as error:
        print(f"kvitto: {error}", file=sys.stderr)
        return 2
    except (StoreError, Refused, ValueError, OSError) as error:
        print(f"kvitto: {error}", file=sys.stderr)
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_early(number: int, _frame: object) -> None:
    """End a start, which may take long. As process 1 of a container this one would not get the signal's usual effect.

    The exit code is 0 if this process has led and begins anew: it was ready before, so its start has not failed.
    """
    if ANEW in os.environ:
        log.info("stopping")
        os._exit(0)
    print(f"kvitto: stopped by {signal.Signals(number).name} before it was ready; no message is lost", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


async def serve(config: Config, election: Election | None = None) -> int:
    """Run the broker until a signal. Return 0 after an end in order. Raises Deposed if another node of its cluster leads, or should."""
    server, notify = Server(config, election=election), Notify(os.environ)
    if not compiled() and (advice := how_to_compile()):
        log.warning("running interpreted, much slower: %s", advice)
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        if server.followers is not None:
            server.followers.given_up = True

    def opened() -> None:
        garbage.spare_the_loop()
        if config.min_in_sync > 1 or election is not None:  # the rest of the start may take days
            for number in STOPS:
                loop.add_signal_handler(number, give_up)

    server.when_opened = opened
    try:
        with garbage.put_off(), nullcontext() if election is None else notify.while_starting():
            await server.start()
    except StoreFull as error:
        if election is None:
            raise
        raise NoRoom(str(error)) from None
    except OSError as error:
        print(f"kvitto: {cannot_listen(server, error)}", file=sys.stderr)
        return 1
    if server.followers is not None and server.followers.given_up:
        log.info("stopped before it served anybody")
        await server.stop()
        return 0
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not stopping:
            log.info("stopping")
            notify.stopping()
            stopping.append(loop.create_task(server.stop()))
        else:
            log.warning("stopped at once by a second signal; all confirmed messages are on disk")
            os._exit(1)

    def reload() -> None:
        notify.reloading()
        server.reload()
        notify.ready(ready(server))

    for number in STOPS:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    if not config.sync:
        log.warning("--sync off: a confirm survives a crash of this process, not of the machine")
    server.when_idle = garbage.clean_up
    print(ready(server), flush=True)
    notify.ready(ready(server))
    notify.watch(loop)
    try:
        await server.run_until_stopped()
    except Deposed:
        if not stopping:
            raise
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
    tls += f" https={in_url(config.http_host)}:{server.https_port}" if config.https_port is not None else ""
    others = ",".join(f"{in_url(other)}:{server.port}" for other in config.more_hosts)
    also = f" also={others}" if others else ""
    also += f" followers={server.followers.address}" if server.followers is not None else ""
    return f"kvitto ready amqp={host}:{server.port}{http} data={server.store_path} pid={server.pid}{tls}{also}"


def cannot_listen(server: Server, error: OSError) -> str:
    """Say why the first missing listener could not be opened: they are opened in this order."""
    config = server.config
    listeners = (
        ("--followers", config.followers, config.followers or None, server.followers and server.followers.port),
        ("--port", config.host, config.port, server.port),
        ("--tls-port", config.host, config.tls_port, server.tls_port),
        ("--http-port", config.http_host, config.http_port, server.http_port),
        ("--https-port", config.http_host, config.https_port, server.https_port),
    )
    option, where = next(
        (name, error.filename or f"{in_url(host)}:{wanted}")
        for name, host, wanted, found in listeners
        if wanted is not None and not found
    )
    number = error.errno or 0
    # asyncio's text for a system error repeats the address; an error of the resolver has a number below 0
    why = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
    hint = {
        errno.EADDRINUSE: f" (is another broker running? choose another {option})",
        errno.EACCES: f" (ports below 1024 are for root: choose another {option})",
    }.get(number, "")
    return f"cannot listen on {where}: {why}{hint}"


def raise_file_limit() -> None:
    """Raise the soft limit of open files, because each connection and each queue with messages needs descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
    except (ValueError, OSError):
        log.debug("the limit of open files stays at %d", soft)
