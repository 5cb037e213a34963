"""The options of `kvitto serve`, and what they are together with the environment and the configuration file.

An option comes before an environment variable, that before the file, and that before the default. `cli.serve` calls both
functions.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvitto.base import config as settings
from kvitto.base import environment
from kvitto.base.config import Config, ConfigError, option
from kvitto.base.log import LEVELS

VARIABLES = (
    "Each setting may also be an environment variable, KVITTO_ and its name in capitals, as KVITTO_DATA_DIR. "
    "An option comes before it, and it before the file."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = VARIABLES
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
    add(
        "--https-port",
        type=port,
        help="HTTP over TLS, with --tls-cert and --tls-key (RabbitMQ's is 15671; default: off)",
    )
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
    add("--log-level", choices=LEVELS, help="log what is at least so important (default: info)")
    add(
        "--default-user",
        metavar="NAME",
        help="administrator of a new data directory, in place of guest; its password: --default-pass-file, or KVITTO_DEFAULT_PASS",
    )
    add("--default-pass-file", type=path, metavar="FILE", help="file with the password of --default-user")
    add("--default-vhost", metavar="NAME", help="virtual host of a new data directory (default: /)")
    add(
        "--definitions",
        type=path,
        metavar="FILE",
        help="JSON file with definitions, imported at each start; they are never deleted",
    )
    add(
        "--foreign-hashes",
        choices=("on", "off"),
        help="off: refuse password hashes of RabbitMQ and LavinMQ (default: on, until their first login)",
    )
    add(
        "--max-connections",
        type=int,
        metavar="N",
        help="AMQP connections (default: as many as the limit of open files allows)",
    )
    add("--max-channels", type=int, metavar="N", help="channels per connection (default: 2047)")
    add("--max-queues", type=int, metavar="N", help="queues (default: as many as the limit of open files allows)")
    add("--followers", metavar="HOST:PORT", help="listen here for followers, with --cluster-key (default: none)")
    add(
        "--follow",
        metavar="HOST:PORT",
        help="be a warm standby of the broker there, with --cluster-key; serve no clients",
    )
    add("--cluster-key", type=path, metavar="FILE", help="file with the key that a broker and its followers share")
    add(
        "--cluster-tls-cert",
        type=path,
        metavar="PEM",
        help="encrypt what nodes send each other, with --cluster-tls-key and --cluster-tls-ca",
    )
    add("--cluster-tls-key", type=path, metavar="PEM")
    add("--cluster-tls-ca", type=path, metavar="PEM", help="authorities that have signed the certificates of the nodes")
    add(
        "--etcd",
        metavar="URL,...",
        help="be a node of a cluster that elects its leader by this etcd, with --followers and --cluster-key",
    )
    add("--etcd-ca", type=path, metavar="PEM", help="authorities of an https etcd (default: those of this machine)")
    add("--etcd-cert", type=path, metavar="PEM", help="certificate that is shown to etcd, with --etcd-key")
    add("--etcd-key", type=path, metavar="PEM")
    add("--etcd-user-file", type=path, metavar="FILE", help="file with a user of etcd and the password, USER:PASSWORD")
    add("--cluster", metavar="NAME", help="name of the cluster in etcd (default: kvitto)")
    add("--advertise", metavar="HOST:PORT", help="where other nodes reach --followers (default: there)")
    add(
        "--min-in-sync",
        type=int,
        metavar="N",
        help="confirm what N nodes have synced, this broker and N - 1 followers (default: 1)",
    )


def config_of(args: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """Return the settings. Raise ConfigError that names a wrong one."""
    given = vars(args)
    chosen = {field.name: given[field.name] for field in fields(Config) if field.name in given}
    for name in settings.SWITCHES:
        if name in chosen:
            chosen[name] = chosen[name] == "on"
    settings.spread_hosts(chosen)
    file = given.get("config") or Path(environ.get(environment.CONFIG, ""))
    layers = (
        ({} if file == Path() else settings.read(file), lambda name: str(file)),
        (environment.read(environ), environment.variable),
        (chosen, option),
    )
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer, source in layers:
        values |= layer
        sources |= {name: source(name) for name in layer}
    try:
        return Config(**values, sources=sources)
    except ConfigError as error:
        raise ConfigError(f"{error}{from_elsewhere(str(error), sources)}") from None


def from_elsewhere(text: str, sources: Mapping[str, str]) -> str:
    """Return the end of a message about settings: which of them come from a file or the environment."""
    found = [
        f"{option(name)} comes from {source}"
        for name, source in sources.items()
        if source != option(name) and re.search(rf"{option(name)}(?![\w-])", text)
    ]
    return f" ({', '.join(found)})" if found else ""


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
